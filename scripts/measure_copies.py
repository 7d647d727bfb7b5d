"""Copy-heavy requests: how much faster drafters without a model make them, and the most they could.

    .venv/bin/python scripts/measure_copies.py
    .venv/bin/python scripts/measure_copies.py --threads 1 --tokens 128 --repeat 1

Three requests at temperature 0, whose answers repeat a text of the prompt but for small changes: a
file is edited, a JSON document repeated with one change, a page corrected. Plain decoding and
drafting take turns; each run starts from empty caches. First the cost of a decode by its number of
tokens: tokens over cost is what a perfect draft of that length would give.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from measuring import facts, median, print_facts, print_json

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.results import Generation
from specllama.text.chat import Message

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
FIELDS = ("name", "street", "city", "phone", "email", "birthday", "team", "room")


def python_file(color: str) -> str:
    """A file of 60 lines."""
    lines = ["import math", "", f'COLOR = "{color}"', ""]
    for name in ("circle", "square", "hexagon", "octagon", "star", "ring", "cross"):
        lines += [
            "",
            f"def draw_{name}(canvas, x, y, size):",
            f'    """Draw a {name} at a place."""',
            "    canvas.move_to(x, y)",
            f"    canvas.{name}(size, color=COLOR)",
            f'    print("drew a {name} of size", size)',
            "    return math.pi * size",
            "",
        ]
    return "\n".join(lines[:60])


def json_document(city: str) -> str:
    """Six people with eight fields each."""
    people = []
    for number, name in enumerate(("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"), 1):
        values = (name, f"{number * 7} Hill Street", city if number == 1 else "Leeds")
        fields = dict(zip(FIELDS, values, strict=False))
        fields |= {"phone": f"555-01{number}{number}", "email": f"{name.lower()}@example.org"}
        fields |= {"birthday": f"19{70 + number}-0{number}-1{number}", "team": "north"}
        inner = ",\n".join(f'    "{key}": "{value}"' for key, value in fields.items())
        people.append("  {\n" + inner + "\n  }")
    return "[\n" + ",\n".join(people) + "\n]"


PAGE = (
    "Last summer we travelled to the coast with two friends. The weather were fine, and we "
    "swam every morning before breakfast. In the afternoon we walked along the cliffs and "
    "looked for birds. One day we hired a small boat and rowed to the island, where an old "
    "lighthouse stands. The keeper showed us the lamp and told us how ships used to find "
    "their way in the fog. On the way back the wind grew stronger, and we had to row hard. "
    "We was tired when we reached the harbour, but nobody complained. In the evening we "
    "cooked fish over a fire and talked about the journey. The next day it rained, so we "
    "stayed in the house, read books and played cards. Before we left, we bought a picture "
    "of the lighthouse in the village shop. It hang now in our kitchen and reminds us of "
    "the summer. We hope to go there again next year with our parents."
)
TASKS = {
    "edit a file": (
        'Change the color in this file from "red" to "blue". Answer with the whole file.',
        python_file("red"),
    ),
    "repeat a JSON": (
        "Repeat this JSON document exactly, but let Ada live in York instead of Leeds.",
        json_document("Leeds"),
    ),
    "correct a page": ("Correct the grammar of this text. Answer with the whole text.", PAGE),
}


def main() -> None:
    """Measure and print."""
    args = _arguments()
    known = facts()
    print_facts(known)
    options = ModelOptions(n_ctx=4096, threads=args.threads, threads_batch=args.threads)
    with SpeculativeDecoder(args.target, options=options) as decoder:
        costs = decode_costs(decoder)
        tasks = {name: _task(decoder, name, args) for name in TASKS}
    print_json(known | {"load_after": facts()["load_average"], "costs": costs, "tasks": tasks})


def decode_costs(decoder: SpeculativeDecoder) -> dict[int, float]:
    """Median milliseconds of a decode by its number of tokens, all with logits."""
    context = decoder._target.context
    ids = decoder.vocabulary.tokenize(PAGE, special=False, add_bos=False)[:100]
    context.decode(ids, range(len(ids)), [(0,)] * len(ids), [False] * len(ids))
    found = {}
    for size in SIZES:
        seconds = []
        for _ in range(12):
            before = context.seconds
            places = range(len(ids), len(ids) + size)
            context.decode(ids[:1] * size, places, [(0,)] * size, [True] * size)
            seconds.append(context.seconds - before)
            context.truncate(0, len(ids))
        found[size] = median(1e3 * s for s in seconds)
        print(f"{size:>3} tokens {found[size]:>8.2f} ms, {size * found[1] / found[size]:.2f} x")
    context.drop(0)
    return found


def _task(decoder: SpeculativeDecoder, name: str, args: argparse.Namespace) -> dict[str, Any]:
    prompt = [Message("user", "\n\n".join(TASKS[name]))]
    plain = GenerationParams(
        max_tokens=args.tokens,
        sampling=SamplingParams(temperature=0.0),
        seed=1,
        drafter="none",
        logprobs=False,
    )
    ways = {"plain": plain, "drafted": _drafted(plain, args)}
    runs: dict[str, list[Generation]] = {way: [] for way in ways}
    _run(decoder, prompt, ways["drafted"])
    for turn in range(args.repeat):
        for way in sorted(ways, reverse=bool(turn % 2)):
            runs[way].append(_run(decoder, prompt, ways[way]))
    rate = {
        way: median(r.timings.decode_tok_s or 0.0 for r in found) for way, found in runs.items()
    }
    last = runs["drafted"][-1]
    found = {
        "tokens": len(last.tokens),
        "plain_tok_s": rate["plain"],
        "drafted_tok_s": rate["drafted"],
        "speedup": round(rate["drafted"] / rate["plain"], 3),
        "tokens_per_round": round(last.spec.tokens_per_round, 2),
        "rounds": last.spec.rounds,
        "drafted": last.spec.drafted,
        "same_text": last.text == runs["plain"][-1].text,
        "by_source": {key: part.accepted for key, part in last.spec.by_source.items()},
    }
    print(name, found, flush=True)
    if args.show:
        print(last.text)
    return found


def _drafted(plain: GenerationParams, args: argparse.Namespace) -> GenerationParams:
    changes: dict[str, Any] = {"drafter": args.drafter, "copy_input": True}
    if args.draft_max is not None:
        changes["draft_max"] = args.draft_max
    return replace(plain, **changes)


def _run(
    decoder: SpeculativeDecoder, prompt: Sequence[Message], params: GenerationParams
) -> Generation:
    decoder.forget()
    return decoder.chat(prompt, params)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--drafter", default="text+suffix")
    parser.add_argument("--draft-max", type=int)
    parser.add_argument("--show", action="store_true", help="print the answers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
