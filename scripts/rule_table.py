"""Tokens a round of every verification rule and tree shape, into the tables of docs/algorithms.md.

    .venv/bin/python scripts/rule_table.py                 the built-in pair, all prompts
    .venv/bin/python scripts/rule_table.py --kinds chat,code --tokens 32 --dry-run

Every generation is a line of RUNS; what is there already is not done again, so that a run may be
broken off and go on later. Tokens a round depend on models, prompts, settings and seeds, not on the
machine's load: it may run beside other work. Drafts have a fixed length.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from arguments import from_1
from measuring import put_between

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.bench.prompts import Prompt, builtin, of_kinds
from specllama.errors import SpecllamaError
from specllama.text.chat import Message
from specllama.verification import RULES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- rule table: begin -->", "<!-- rule table: end -->"
RUNS = ROOT / "build" / "rule_table.jsonl"
TEMPERATURES = (0.0, 0.7, 1.0)
TREE = "2,2,1"
SHAPES = ("2,1", "3,1", "2,2,1", "3,2,1", "2,2,1,1", "value", "planned")
SHAPES_RULE = "coupled"
"""The rule under which shapes are compared: growing by value needs one that reads no laws."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one figure of a table is measured with; `tree` is "" for a chain."""

    rule: str
    tree: str
    temperature: float

    @classmethod
    def of(cls, rule: str, tree: str, temperature: float) -> "Cell":
        """At temperature 0 drafts are deterministic, and every rule does what `match` does."""
        return cls("match" if temperature == 0.0 else rule, tree, temperature)

    def params(self, tokens: int, gamma: int, seed: int) -> GenerationParams:
        """As a generation is asked for."""
        return GenerationParams(
            max_tokens=tokens,
            sampling=SamplingParams(temperature=self.temperature),
            seed=seed,
            verify=self.rule,  # type: ignore[arg-type]
            drafter="tree" if self.tree else "model",
            tree=self.tree or TREE,
            draft_max=gamma,
            logprobs=False,
            adaptive=False,
        )


def rule_rows() -> list[tuple[str, str]]:
    """(rule, tree) of each row. On a chain the tree rules that read laws are `rejection`, and
    traversal is `block`: they are measured on trees."""
    chains = [name for name, rule in RULES.items() if rule.shape == "chain" or not rule.uses_law]
    trees = [name for name, rule in RULES.items() if rule.shape == "tree"]
    return [(name, "") for name in chains] + [(name, TREE) for name in trees]


def shape_rows() -> list[tuple[str, str]]:
    """The same for the table of shapes."""
    return [(SHAPES_RULE, shape) for shape in SHAPES]


def cells(rows: Iterable[tuple[str, str]]) -> list[Cell]:
    """The different cells of a table."""
    found = (Cell.of(rule, tree, temp) for rule, tree in rows for temp in TEMPERATURES)
    return list(dict.fromkeys(found))


def main() -> None:
    """Measure what is missing and write the tables."""
    args = _arguments()
    prompts = by_turns(of_kinds(builtin(), args.kinds.split(",") if args.kinds else ()))
    setting = {name: getattr(args, name) for name in ("target", "draft", "tokens", "gamma")}
    runs = Runs(args.runs, setting)
    work = [
        (prompt, cell)
        for rows in (rule_rows(), shape_rows())
        for prompt in prompts
        for cell in cells(rows)
        if not runs.has(prompt, cell)
    ]
    if work:
        options = ModelOptions(n_ctx=2048, threads=args.threads, threads_batch=args.threads)
        with SpeculativeDecoder(args.target, args.draft, options=options) as decoder:
            _measure(decoder, work, runs, args.pause_while)
    lines = report(runs, prompts)
    print("\n".join(lines))
    if not args.dry_run:
        write(PAGE, lines)


def by_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """One prompt of each kind, then the next of each: a part of the work is balanced as well."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_kind.values()))
    return [prompt for prompt in turns if prompt is not None]


class Runs:
    """The generations done so far, a JSON line each.

    Args:
        setting: what has to be equal for an earlier line to count.

    Raises:
        SpecllamaError: the file cannot be read, or a line of it is no generation.
    """

    def __init__(self, file: Path, setting: dict[str, Any]) -> None:
        self.setting = setting
        self._file = file
        self._found: dict[tuple[str, Cell], dict[str, Any]] = {}
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            for line in lines:
                self._take(json.loads(line))
        except (OSError, ValueError, LookupError) as error:
            raise SpecllamaError(f"Cannot go on from {file}: {error}.", "Move it away.") from error

    def _take(self, run: dict[str, Any]) -> None:
        if self.setting.items() <= run.items():
            cell = Cell(run["rule"], run["tree"], run["temperature"])
            self._found[run["prompt"], cell] = run

    def has(self, prompt: Prompt, cell: Cell) -> bool:
        """Whether a generation is done."""
        return (prompt.id, cell) in self._found

    def add(self, prompt: Prompt, cell: Cell, counts: dict[str, int]) -> None:
        """Note a generation."""
        run = {"prompt": prompt.id, **asdict(cell), **self.setting, **counts}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        self._take(run)

    def of(self, cell: Cell, prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
        """The generations of a cell, one for each prompt that has one."""
        return [self._found[p.id, cell] for p in prompts if self.has(p, cell)]


def _measure(
    decoder: SpeculativeDecoder,
    work: Sequence[tuple[Prompt, Cell]],
    runs: Runs,
    pause_while: Path | None,
) -> None:
    """All cells of a prompt one after the other, so that it is read once."""
    seeds = {prompt.id: number for number, prompt in enumerate(builtin())}
    seconds = 0.0
    for done, (prompt, cell) in enumerate(work, 1):
        while pause_while is not None and pause_while.exists():
            time.sleep(0.5)
        started = time.perf_counter()
        params = cell.params(runs.setting["tokens"], runs.setting["gamma"], seeds[prompt.id])
        spec = decoder.chat([Message("user", prompt.text)], params).spec
        counts = {"rounds": spec.rounds, "drafted": spec.drafted, "accepted": spec.accepted}
        runs.add(prompt, cell, counts)
        seconds += time.perf_counter() - started
        left = seconds / done * (len(work) - done) / 60
        print(f"{done}/{len(work)}, {left:.0f} min left at this pace", file=sys.stderr, flush=True)


def report(runs: Runs, prompts: Sequence[Prompt]) -> list[str]:
    """Both tables as Markdown, over the prompts that all their cells have."""
    return [
        *_table(runs, prompts, rule_rows(), shape_column=False),
        "",
        f"Shapes of trees under `{SHAPES_RULE}`, with the nodes drafted a round at each "
        "temperature; `value` grows by the draft's probability (EAGLE-2), `planned` is Sequoia's.",
        "",
        *_table(runs, prompts, shape_rows(), shape_column=True),
    ]


def _table(
    runs: Runs,
    prompts: Sequence[Prompt],
    rows: Sequence[tuple[str, str]],
    *,
    shape_column: bool,
) -> list[str]:
    measured = [p for p in prompts if all(runs.has(p, cell) for cell in cells(rows))]
    if not measured:
        return ["Not measured yet."]
    setting = runs.setting
    temperatures = [f"T = {temp:g}" for temp in TEMPERATURES]
    first = ["tree"] if shape_column else ["rule", "drafts"]
    lines = [first + temperatures + (["nodes"] if shape_column else [])]
    errors = []
    for rule, tree in rows:
        found = [runs.of(Cell.of(rule, tree, temp), measured) for temp in TEMPERATURES]
        nodes = " / ".join(f"{_per_round(part, 'drafted'):.1f}" for part in found)
        names = [tree] if shape_column else [rule, f"tree {tree}" if tree else "chain"]
        figures = [f"{1 + _per_round(part, 'accepted'):.2f}" for part in found]
        lines.append(names + figures + ([nodes] if shape_column else []))
        errors += [standard_error(part) for part in found]
    kinds = len({prompt.kind for prompt in measured})
    return [
        f"{setting['target']} with {setting['draft']}, {len(measured)} prompts of {kinds} kinds, "
        f"at most {setting['tokens']} tokens each, up to {setting['gamma']} drafted in a row, "
        "default top-k, top-p and min-p. Plain decoding is 1; standard errors over prompts are "
        f"{min(errors):.2f} to {max(errors):.2f}.",
        "",
        *_markdown(lines, n_names=len(first)),
    ]


def _per_round(found: Iterable[dict[str, Any]], what: str) -> float:
    found = list(found)
    return float(sum(run[what] for run in found) / sum(run["rounds"] for run in found))


def standard_error(found: Sequence[dict[str, Any]]) -> float:
    """Of the accepted tokens a round, by leaving out one prompt at a time (the jackknife)."""
    if len(found) < 2:
        return 0.0
    n = len(found)
    others = [_per_round([*found[:i], *found[i + 1 :]], "accepted") for i in range(n)]
    return float(((n - 1) * statistics.pvariance(others)) ** 0.5)


def _markdown(lines: Sequence[Sequence[str]], n_names: int) -> Iterator[str]:
    rule = ["---"] * n_names + ["---:"] * (len(lines[0]) - n_names)
    for row in (lines[0], rule, *lines[1:]):
        yield "| " + " | ".join(row) + " |"


def write(page: Path, lines: Sequence[str]) -> None:
    """Put lines between the markers of a page.

    Raises:
        SpecllamaError: the page lacks the markers.
    """
    put_between(page, BEGIN, END, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--threads", type=from_1, default=1)
    parser.add_argument("--tokens", type=from_1, default=40, help="per prompt")
    parser.add_argument("--gamma", type=from_1, default=4, help="the most tokens drafted in a row")
    parser.add_argument("--kinds", default="", help="of prompts, separated by commas")
    parser.add_argument("--runs", type=Path, default=RUNS, help="JSON lines of what is done")
    parser.add_argument("--pause-while", type=Path, help="wait while this file exists")
    parser.add_argument("--dry-run", action="store_true", help="print the tables only")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except SpecllamaError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
