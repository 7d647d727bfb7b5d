"""Measure a draft against its target with llama.cpp on the CPU, without a speculative loop.

    python scripts/evaluate_draft.py TARGET.gguf DRAFT.gguf [DRAFT2.gguf ...]

The target answers held-out prompts, one token a decode, greedily, at temperature 1 and with the
usual sampler settings.  Each draft then scores that text in one pass.  Where a greedy draft chain
survives its context *is* the target's text, so rounds are counted exactly from the agreements.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
from arguments import from_1
from distil.tokens import Tokenizer

from specllama.errors import SpecllamaError

CHAINS = (1, 2, 3, 4)
PROMPTS = Path(__file__).with_name("heldout_prompts.jsonl")


@llama_cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log."""


class Model:
    """One GGUF with one sequence, through the low-level API."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {path}. Give a whole GGUF model.")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = context
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        if not self._context:
            raise ValueError(
                f"No memory for a context of {context} tokens of {path}. Lower --context."
            )
        self._batch = llama_cpp.llama_batch_init(context, 0, 1)
        self._length = context
        self._past = 0

    def clear(self) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        self._past = 0

    def decode(self, tokens: list[int]) -> np.ndarray:
        """Append tokens; logits after each of them, [n, vocab] (a copy)."""
        if self._past + len(tokens) > self._length:  # the batch has no room either
            raise ValueError(
                f"A prompt and its answer take more than --context {self._length}. Raise it."
            )
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self._past + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        self._past += len(tokens)
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (len(tokens), self.vocab)).copy()


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
    """One answer: what the draft has to predict, and the target's law at each token of it."""

    kind: str
    tokens: list[int]
    start: int
    laws: np.ndarray


def write_answer(
    target: Model, kind: str, prompt: list[int], law: str, count: int, ends: set[int], seed: int
) -> Text:
    """The target's answer of at most `count` tokens; the end token counts as one."""
    rng = np.random.default_rng(seed)
    target.clear()
    tokens, laws = list(prompt), []
    logits = target.decode(prompt)[-1]
    for _ in range(count):
        p = LAWS[law](logits)
        token = int(p.argmax() if law == "greedy" else rng.choice(len(p), p=p / p.sum()))
        laws.append(p.astype(np.float32))
        tokens.append(token)
        if token in ends:
            break
        logits = target.decode([token])[0]
    return Text(kind, tokens, len(prompt), np.stack(laws))


def overlaps(draft: Model, text: Text, law: str) -> np.ndarray:
    """sum(min(p, q)) at each token of the answer (0 or 1 for greedy laws)."""
    draft.clear()
    logits = draft.decode(text.tokens[:-1])[text.start - 1 :]
    return np.array(
        [np.minimum(p, LAWS[law](z)).sum() for p, z in zip(text.laws, logits, strict=True)]
    )


def tokens_a_round(agreements: list[np.ndarray], chain: int) -> float:
    """Mean tokens out of one verification of a greedy chain, its own token included."""
    tokens = rounds = 0
    for agreed in agreements:
        place = 0
        while place < len(agreed):
            ahead = agreed[place : place + chain]
            gain = int(ahead.argmin() if not ahead.all() else len(ahead))
            place += gain + 1
            rounds += 1
        tokens += len(agreed)
    return tokens / rounds


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
            values = [overlaps(draft, text, law) for text in answers]
            record[law] = round(float(np.concatenate(values).mean()), 4)
            if law == "greedy":
                kinds = defaultdict(list)
                for text, value in zip(answers, values, strict=True):
                    kinds[text.kind].append(value)
                record["greedy by kind"] = {
                    kind: round(float(np.concatenate(v).mean()), 3) for kind, v in kinds.items()
                }
                record["tokens a round"] = [round(tokens_a_round(values, c), 3) for c in CHAINS]
        records.append(record)
        print(json.dumps(record), flush=True)
    return records


def read_prompts(file: Path) -> list[dict[str, str]]:
    """Each line's kind and prompt.

    Raises:
        ValueError: a line lacks them, or there is none.
    """
    prompts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            prompts.append({"kind": str(entry["kind"]), "prompt": str(entry["prompt"])})
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{file}, line {number} is no JSON with kind and prompt. Mend the line."
            ) from error
    if not prompts:
        raise ValueError(f"{file} has no prompts. Write one a line, with kind and prompt.")
    return prompts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", type=Path, help="the GGUF that the drafts are for")
    parser.add_argument("drafts", type=Path, nargs="+", help="their GGUFs")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines: kind, prompt")
    parser.add_argument("--tokens", type=from_1, default=128, help="tokens an answer at most")
    parser.add_argument("--threads", type=from_1, default=2)
    parser.add_argument("--context", type=from_1, default=1024)
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--repeats", type=int, default=40, help="rounds of timing (0: none)")
    args = parser.parse_args()
    for file in (args.target, *args.drafts, args.prompts):
        if not file.is_file():
            parser.error(f"{file} is no file")
    return args


def main() -> None:
    args = parse()
    llama_cpp.llama_log_set(_silent, None)
    llama_cpp.llama_backend_init()
    tokenizer = Tokenizer(args.target)
    ends = set(tokenizer.end_tokens())
    prompts = read_prompts(args.prompts)
    target = Model(args.target, args.context, args.threads)
    drafts = {path.name: Model(path, args.context, args.threads) for path in args.drafts}
    for name, draft in drafts.items():
        if draft.vocab != target.vocab:
            raise ValueError(
                f"{name} has {draft.vocab} tokens, the target {target.vocab}. "
                "Give a draft of the target's vocabulary."
            )
    texts = defaultdict(list)
    for number, entry in enumerate(prompts):
        ids = tokenizer.chat(entry["prompt"])
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
    try:
        main()
    except (OSError, ValueError, SpecllamaError) as error:
        sys.exit(f"{error}")
