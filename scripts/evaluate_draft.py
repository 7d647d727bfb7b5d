"""Measure a draft against its target with llama.cpp on the CPU, without a speculative loop.

    python scripts/evaluate_draft.py TARGET.gguf DRAFT.gguf [DRAFT2.gguf ...]

The target answers held-out prompts, one token a decode, greedily, at temperature 1 and with the
usual sampler settings.  Each draft then scores that text in one pass, with the target's hidden
states beside all tokens of the answer if it reads them, and without.  Greedy chains are drafted
round by round, a state beside the first token of each.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from distil.tokens import Tokenizer

from specllama.hub.gguf import read
from specllama.llama import model as llama
from specllama.llama.context import Context
from specllama.llama.hidden import hidden_reader

CHAINS = (1, 2, 3, 4)
PROMPTS = Path(__file__).with_name("heldout_prompts.jsonl")


class Model:
    """One GGUF with one sequence; a draft reads the target's hidden states if it can."""

    def __init__(self, path: Path, context: int, threads: int, width: int = 0) -> None:
        model = llama.Model(path, gpu_layers=0)
        self.width, self.vocab = model.n_embd, model.n_vocab
        self.context = Context(
            model,
            n_ctx=context,
            n_batch=context,
            n_outputs=context,
            threads=threads,
            reader=hidden_reader(read(path), width),
        )
        self.context.tells_hidden = True

    def clear(self) -> None:
        self.context.drop(0)

    def decode(
        self, tokens: Sequence[int], states: dict[int, np.ndarray] | None = None
    ) -> np.ndarray:
        """Append tokens; logits after each of them, [n, vocab] (a copy).

        Args:
            states: by place in tokens, the target's hidden state that said the token.
        """
        count, past = len(tokens), self.context.length(0)
        places = range(past, past + count)
        rows = self.context.decode(tokens, places, [(0,)] * count, [True] * count, hidden=states)
        return np.stack(rows)

    def cut(self, length: int) -> None:
        self.context.truncate(0, length)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
    return powers / powers.sum(-1, keepdims=True)


def greedy(logits: np.ndarray) -> np.ndarray:
    law = np.zeros(len(logits))
    law[logits.argmax()] = 1
    return law


def usual(logits: np.ndarray) -> np.ndarray:
    """llama.cpp's default chain: top_k 40, top_p 0.95, min_p 0.05, temperature 0.8."""
    order = np.argpartition(-logits, 40)[:40]
    order = order[np.argsort(-logits[order])]
    p = softmax(logits[order])
    keep = (np.cumsum(p) - p < 0.95) & (p >= 0.05 * p[0])
    law = np.zeros(len(logits))
    law[order[keep]] = softmax(logits[order[keep]] / 0.8)
    return law


LAWS = {"greedy": greedy, "temperature 1": softmax, "usual": usual}


@dataclass(slots=True)
class Text:
    """One answer: what the draft has to predict, and the target's law and state at each token."""

    kind: str
    tokens: list[int]
    start: int
    laws: np.ndarray
    states: np.ndarray


def write_answer(
    target: Model, kind: str, prompt: list[int], law: str, count: int, ends: set[int], seed: int
) -> Text:
    """The target's answer of at most `count` tokens; the end token counts as one."""
    rng = np.random.default_rng(seed)
    target.clear()
    tokens, laws, states = list(prompt), [], []
    target.decode(prompt[:-1])
    logits = target.decode(prompt[-1:])[0]
    for _ in range(count):
        p = LAWS[law](logits)
        token = int(p.argmax() if law == "greedy" else rng.choice(len(p), p=p / p.sum()))
        laws.append(p.astype(np.float32))
        states.append(target.context.hidden(0))
        tokens.append(token)
        if token in ends:
            break
        logits = target.decode([token])[0]
    return Text(kind, tokens, len(prompt), np.stack(laws), np.stack(states))


def overlaps(draft: Model, text: Text, law: str, told: bool) -> np.ndarray:
    """sum(min(p, q)) at each token of the answer (0 or 1 for greedy laws).

    Args:
        told: the draft is given the states that said the tokens before.
    """
    draft.clear()
    states = {text.start + i: state for i, state in enumerate(text.states[:-1])}
    logits = draft.decode(text.tokens[:-1], states if told else {})[text.start - 1 :]
    return np.array(
        [np.minimum(p, LAWS[law](z)).sum() for p, z in zip(text.laws, logits, strict=True)]
    )


def tokens_a_round(draft: Model, texts: list[Text], chain: int) -> float:
    """Mean tokens out of one verification of a greedy chain, the target's own token included."""
    tokens = rounds = 0
    for text in texts:
        draft.clear()
        draft.decode(text.tokens[: text.start])
        place = text.start
        while place < len(text.tokens):
            place += 1 + drafted(draft, text, place, chain)
            rounds += 1
        tokens += len(text.tokens) - text.start
    return tokens / rounds


def drafted(draft: Model, text: Text, place: int, chain: int) -> int:
    """How many of the tokens from `place` on a greedy chain says."""
    held = min(draft.context.length(0), place - 1)
    draft.cut(held)
    pending = text.tokens[held:place]
    said = place - 1 - text.start
    states = {len(pending) - 1: text.states[said]} if said >= 0 else {}
    for right in range(min(chain, len(text.tokens) - place)):
        token = int(draft.decode(pending, states)[-1].argmax())
        if token != text.tokens[place + right]:
            return right
        pending, states = [token], {}
    return min(chain, len(text.tokens) - place)


def time_decodes(models: list[Model], prompt: list[int], repeats: int) -> list[list[float]]:
    """Milliseconds of single-token decodes, the models taking turns (A B A B)."""
    for model in models:
        model.clear()
        model.decode(prompt)
    times: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for model, spent in zip(models, times, strict=True):
            for turn in range(4):
                start = time.perf_counter()
                model.decode([prompt[-1]])
                if turn:
                    spent.append((time.perf_counter() - start) * 1000)
    return times


def report(drafts: dict[str, Model], texts: dict[str, list[Text]]) -> list[dict[str, object]]:
    """One record a draft: means by law, greedy agreement by kind, tokens a round."""
    records = []
    for name, draft in drafts.items():
        record: dict[str, object] = {"draft": name}
        for law, answers in texts.items():
            values = [overlaps(draft, text, law, told=True) for text in answers]
            record[law] = round(float(np.concatenate(values).mean()), 4)
            if draft.context.reads_hidden:
                blind = [overlaps(draft, text, law, told=False) for text in answers]
                record[f"{law}, no states"] = round(float(np.concatenate(blind).mean()), 4)
            if law == "greedy":
                kinds = defaultdict(list)
                for text, value in zip(answers, values, strict=True):
                    kinds[text.kind].append(value)
                record["greedy by kind"] = {
                    kind: round(float(np.concatenate(v).mean()), 3) for kind, v in kinds.items()
                }
                record["tokens a round"] = [
                    round(tokens_a_round(draft, answers, c), 3) for c in CHAINS
                ]
        records.append(record)
        print(json.dumps(record), flush=True)
    return records


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("drafts", type=Path, nargs="+")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines: kind, prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens an answer at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--repeats", type=int, default=40, help="rounds of timing (0: none)")
    return parser.parse_args()


def main() -> None:
    args = parse()
    tokenizer = Tokenizer(args.target)
    head, to_answer, _ = tokenizer.frame(None)
    ends = set(tokenizer.end_tokens())
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    target = Model(args.target, args.context, args.threads)
    drafts = {
        path.name: Model(path, args.context, args.threads, target.width) for path in args.drafts
    }
    texts = defaultdict(list)
    for number, entry in enumerate(prompts):
        ids = [*head, *tokenizer.encode(entry["prompt"]), *to_answer]
        for law in args.laws:
            answer = write_answer(target, entry["kind"], ids, law, args.tokens, ends, number)
            texts[law].append(answer)
    report(drafts, texts)
    if args.repeats:
        models = [target, *drafts.values()]
        times = time_decodes(models, ids, args.repeats)
        for name, spent in zip(("target", *drafts), times, strict=True):
            share = statistics.median(spent) / statistics.median(times[0])
            least = min(spent) / min(times[0])
            print(
                f"{name}: median {statistics.median(spent):.2f} ms ({share:.3f} of the target's), "
                f"least {min(spent):.2f} ms ({least:.3f})"
            )
    print(f"{len(prompts)} prompts, {args.threads} threads, load average {os.getloadavg()}")


if __name__ == "__main__":
    main()
