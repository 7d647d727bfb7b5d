"""Tokens a round of every verification rule, into the table of docs/algorithms.md.

    .venv/bin/python scripts/rule_table.py                            the built-in pair, all prompts
    .venv/bin/python scripts/rule_table.py --kinds chat,code --tokens 32 --dry-run

Tokens a round depend on models, prompts and seeds, not on the machine's load. Drafts have a fixed
length; a rule that this specllama does not offer, or that has no drafter here, is left out.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.bench.metrics import total_spec
from specllama.bench.prompts import Prompt, builtin, of_kinds
from specllama.bench.runner import Arm, Session
from specllama.errors import SpecllamaError, UsageError
from specllama.verification import RULES

PAGE = Path(__file__).parent.parent / "docs" / "algorithms.md"
BEGIN, END = "<!-- rule table: begin -->", "<!-- rule table: end -->"
TEMPERATURES = (0.0, 0.7, 1.0)
DRAFTERS = {"chain": ("model",), "tree": ("model", "tree")}
TREE = "2,2,1"
"""Per shape that a rule can judge."""


def main() -> None:
    """Measure every rule and write the table."""
    args = _arguments()
    prompts = of_kinds(builtin(), args.kinds.split(",") if args.kinds else ())
    options = ModelOptions(n_ctx=2048, threads=args.threads, threads_batch=args.threads)
    with SpeculativeDecoder(args.target, args.draft, options=options) as decoder:
        session = Session({"target": decoder}, prompts, args.tokens)
        rows = [[rule, drafter, *cells] for rule, drafter, cells in _measure(session, args.gamma)]
    lines = [
        f"{args.target} with {args.draft}, {len(prompts)} prompts, {args.tokens} tokens each, "
        f"up to {args.gamma} drafted in a row, default top-k, top-p and min-p. "
        "Plain decoding is 1.",
        "",
        *_table(["rule", "drafter", *(f"T = {temp:g}" for temp in TEMPERATURES)], rows),
    ]
    print("\n".join(lines))
    if not args.dry_run:
        write(PAGE, lines)


def _measure(session: Session, gamma: int) -> Iterator[tuple[str, str, list[str]]]:
    for name, rule in RULES.items():
        for drafter in DRAFTERS[rule.shape]:
            try:
                params = GenerationParams(
                    tree=TREE,
                    verify=name,  # type: ignore[arg-type]
                    drafter=drafter,
                    draft_max=gamma,
                    adaptive=False,
                )
                cells = [_tokens_a_round(session, params, temp) for temp in TEMPERATURES]
            except UsageError as error:
                print(f"{name} with {drafter} is left out: {error}", file=sys.stderr)
            else:
                print(f"{name} with {drafter}: {', '.join(cells)}", file=sys.stderr, flush=True)
                yield name, drafter, cells


def _tokens_a_round(session: Session, params: GenerationParams, temperature: float) -> str:
    """Over all prompts.

    Raises:
        UsageError: the drafter drafted nothing.
    """
    arm = Arm("rule", replace(params, sampling=SamplingParams(temperature=temperature)))
    spec = total_spec(session.run(arm, prompt, 1) for prompt in _all(session.prompts))
    if not spec.drafted:
        raise UsageError("nothing was drafted.")
    return f"{spec.tokens_per_round:.2f}"


def _all(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    for number, prompt in enumerate(prompts, 1):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(prompts)} ", end="", file=sys.stderr, flush=True)
        yield prompt


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---", "---", *["---:"] * len(TEMPERATURES)]
    return ["| " + " | ".join(row) + " |" for row in (columns, rule, *rows)]


def write(page: Path, lines: Sequence[str]) -> None:
    """Put lines between the markers of a page.

    Raises:
        SpecllamaError: the page lacks the markers.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SpecllamaError(f"{page} lacks the markers.", f"Put {BEGIN} and {END} into it.")
    table = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64, help="per prompt")
    parser.add_argument("--gamma", type=int, default=4, help="the most tokens drafted in a row")
    parser.add_argument("--kinds", default="", help="of prompts, separated by commas")
    parser.add_argument("--dry-run", action="store_true", help="print the table only")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except SpecllamaError as error:
        sys.exit(str(error))
