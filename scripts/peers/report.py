"""The comparison as Markdown: speeds, what drafts were worth, and whose law is the target's."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from peers.arms import BASELINE, OURS
from peers.runs import Runs
from specllama.bench.laws import MIN_EXPECTED, chi_square
from specllama.bench.metrics import Ratio, bootstrap

WRONG = 1e-3
"""A p-value below which a law counts as wrong: one right arm in a thousand is accused."""

NATIVE = ("llama-server", "llama-speculative")


def markdown(
    runs: Runs,
    laws: Runs,
    law: Mapping[str, float],
    facts: Mapping[str, Any],
    notes: Sequence[str],
) -> list[str]:
    """The whole section, without its heading."""
    speed = [line for line in runs if line["key"][0] == "speed"]
    lines = [*_header(facts, speed), ""]
    tested = _tested(laws, law)
    wrong = {arm for arm, (_, p) in tested.items() if p < WRONG}
    for temperature in dict.fromkeys(line["key"][3] for line in speed):
        at = [line for line in speed if line["key"][3] == temperature]
        lines += [*_speed(at, wrong if float(temperature) else set()), ""]
    lines += [*_laws(tested, law), ""]
    lines += [f"- {note}" for note in [*notes, *_failures(runs)]]
    return lines


def _header(facts: Mapping[str, Any], speed: Sequence[Mapping[str, Any]]) -> list[str]:
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    if not speed:
        return [f"{told}. Nothing was measured yet."]
    loads = [line["load"] for line in speed]
    threads = speed[0]["setting"]["threads"]
    days = sorted({line["date"] for line in speed})
    return [
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))}: {told}.",
        f"Load average before a reply: median {statistics.median(loads):.2f}, "
        f"most {max(loads):.2f} (the measuring itself makes {threads} of it).",
    ]


def rates(lines: Sequence[Mapping[str, Any]], arm: str) -> dict[str, float]:
    """Prompt -> an arm's median rate over its repetitions."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["key"][1] == arm and line["tok_s"]:
            found.setdefault(line["key"][2], []).append(line["tok_s"])
    return {prompt: statistics.median(values) for prompt, values in found.items()}


def ratio(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Ratio | None:
    """Geometric mean over the prompts both answered."""
    both = [ours[prompt] / theirs[prompt] for prompt in ours if prompt in theirs]
    return bootstrap(both) if both else None


def _speed(lines: Sequence[Mapping[str, Any]], wrong: Set[str]) -> list[str]:
    """One table: the arms at one temperature, some with a law that is not the target's there."""
    temperature = lines[0]["key"][3]
    arms = list(dict.fromkeys(line["key"][1] for line in lines))
    by_arm = {arm: rates(lines, arm) for arm in arms}
    table = [
        f"**Temperature {temperature}**",
        "",
        "| arm | tok/s | over its own plain | specllama over it | accepted | tokens a round | "
        "tokens said |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm in sorted(arms, key=lambda name: -_median(by_arm[name])):
        own = _ratio(ratio(by_arm[arm], by_arm.get(_plain_of(arm), {})))
        beside = _ratio(ratio(by_arm.get(OURS, {}), by_arm[arm])) if arm != OURS else ""
        replies = [line for line in lines if line["key"][1] == arm]
        cells = [arm, f"{_median(by_arm[arm]):.1f}", own if arm != _plain_of(arm) else "", beside]
        table.append(f"| {' | '.join([*cells, *_counts(replies)])} |")
    return [*table, "", _best_native(by_arm, wrong)]


def _median(values: Mapping[str, float]) -> float:
    return statistics.median(values.values()) if values else 0.0


def _plain_of(arm: str) -> str:
    """The plain arm of an arm's family; all of llama.cpp's programs share the server's."""
    if arm.startswith(NATIVE):
        return BASELINE
    return f"{arm.partition(',')[0]}, plain"


def _counts(replies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Accepted of drafted, tokens a round, tokens said; "" for what a peer does not tell."""
    said = sum(reply["n"] for reply in replies)
    told = [reply for reply in replies if reply["rounds"] is not None]
    drafted = sum(reply["drafted"] or 0 for reply in told)
    accepted = sum(reply["accepted"] or 0 for reply in told)
    rounds = sum(reply["rounds"] for reply in told)
    return [
        f"{accepted / drafted:.0%}" if drafted else "",
        f"{1 + accepted / rounds:.2f}" if rounds else "",
        str(said),
    ]


def _best_native(by_arm: Mapping[str, Mapping[str, float]], wrong: Set[str]) -> str:
    """specllama beside the fastest of llama.cpp's own programs that say what the target would."""
    native = {
        arm: values
        for arm, values in by_arm.items()
        if arm.startswith(NATIVE) and values and arm not in wrong
    }
    if not native or not by_arm.get(OURS):
        return "No native run to compare with."
    best = max(native, key=lambda arm: _median(native[arm]))
    beside = _ratio(ratio(by_arm[OURS], native[best]))
    which = "best native run with the target's law" if wrong else "best native run"
    return f"specllama beside the {which} ({best}): {beside}."


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return f"{value.value:.2f}x"
    return f"{value.value:.2f}x ({value.low:.2f}-{value.high:.2f})"


def _tested(runs: Runs, law: Mapping[str, float]) -> dict[str, tuple[int, float]]:
    """Of each arm the number of replies, and the p-value of their counts against the law."""
    counts: dict[str, Counter[str]] = {}
    for line in runs:
        if line["key"][0] == "law":
            counts.setdefault(line["key"][1], Counter())[line["begins"]] += 1
    return {arm: (found.total(), chi_square(found, law)) for arm, found in counts.items()}


def _laws(tested: Mapping[str, tuple[int, float]], law: Mapping[str, float]) -> list[str]:
    if not tested:
        return ["The laws were not tested yet."]
    rows = ["| arm | replies | p-value | the target's law |", "| --- | ---: | ---: | --- |"]
    for arm, (replies, p) in tested.items():
        if p >= WRONG and _n_cells(replies, law) < 2:
            rows.append(f"| {arm} | {replies} |  | too few |")
        else:
            rows.append(f"| {arm} | {replies} | {p:.2g} | {'no' if p < WRONG else 'yes'} |")
    return rows


def _n_cells(replies: int, law: Mapping[str, float]) -> int:
    """Cells that the test compares: those that expect enough, and all others together."""
    large = [share for share in law.values() if replies * share >= MIN_EXPECTED]
    return len(large) + (sum(large) < 1 - 1e-6)


def _failures(runs: Runs) -> list[str]:
    """Arms that failed and have no figures since."""
    measured = {line["key"][1] for line in runs if line["key"][0] != "failure"}
    return [
        f"{line['key'][1]} {'failed later on' if line['key'][1] in measured else 'failed'}: "
        f"{line['sentence']}"
        for line in runs
        if line["key"][0] == "failure"
    ]
