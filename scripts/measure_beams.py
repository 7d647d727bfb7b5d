"""How many target batches speculative beam search takes, against one a step for plain beam search.

    python scripts/measure_beams.py                     the built-in pair
    python scripts/measure_beams.py --width 8 --tokens 96

Every search is compared with the plain one: hypotheses and scores have to be the same. Counts do
not depend on the machine's load; seconds do, and are printed for orientation only.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from measuring import facts, print_facts, print_json

from specllama import BeamParams, BeamResult, Message, ModelOptions, SpeculativeDecoder

POEM = (
    "The river turned silver at dusk. Boats came home one by one, and the women on the quay "
    "counted them aloud: one, two, three, four. The fifth was late, as it had been every autumn."
)
PROMPTS = {
    "list": "List the twelve months of the year, one a line, with the number of days of each.",
    "code": "Write a Python function that returns the largest of three numbers, and its tests.",
    "copy": f"Repeat this text word for word:\n\n{POEM}",
}


def compare(
    decoder: SpeculativeDecoder, text: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One prompt, searched plainly and with each drafter."""
    found: dict[str, BeamResult] = {}
    for drafter in ("none", "model", "recycle"):
        decoder.forget()
        params = BeamParams(
            width=arguments.width,
            max_tokens=arguments.tokens,
            drafter=drafter,
            draft_max=arguments.draft_max,
            adaptive=arguments.adaptive,
        )
        found[drafter] = decoder.beam_search_chat([Message("user", text)], params)
    plain = found.pop("none")
    return {
        "steps": plain.stats.steps,
        "plain_batches": plain.stats.batches,
        "plain_s": round(plain.wall_s, 2),
        **{name: _against(plain, result) for name, result in found.items()},
    }


def _against(plain: BeamResult, result: BeamResult) -> dict[str, Any]:
    pairs = list(zip(plain.hypotheses, result.hypotheses, strict=True))
    return {
        "batches": result.stats.batches,
        "share": round(result.stats.batches / plain.stats.batches, 3),
        "draft_batches": result.stats.draft_batches,
        "drafted": result.stats.drafted,
        "used": result.stats.used,
        "seconds": round(result.wall_s, 2),
        "same": sum(one.tokens == other.tokens for one, other in pairs) == len(pairs),
        "score_difference": max(abs(one.score - other.score) for one, other in pairs),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each prompt and everything as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--draft-max", type=int, default=BeamParams().draft_max)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--adaptive", action="store_true", help="for time instead of batches")
    parser.add_argument("--exact", action="store_true", help="the same bits, in small batches")
    given = parser.parse_args(arguments)
    found = facts()
    print_facts(found)
    options = ModelOptions(threads=given.threads, n_ctx=2048, exact=given.exact, flash_attn="on")
    rows = {}
    with SpeculativeDecoder(given.target, given.draft, options=options) as decoder:
        for name, text in PROMPTS.items():
            rows[name] = compare(decoder, text, given)
            print(f"{name:6} {rows[name]}", flush=True)
    shares = [row["model"]["batches"] for row in rows.values()]
    total = sum(row["plain_batches"] for row in rows.values())
    print(f"\nall    {sum(shares) / total:.3f} target batches a step with the draft model\n")
    print_json({"facts": found, "arguments": vars(given), "prompts": rows})


if __name__ == "__main__":
    main()
