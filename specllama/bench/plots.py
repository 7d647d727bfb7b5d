"""The charts. matplotlib is optional: `pip install 'specllama[plot]'`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specllama.bench.metrics import Ratio, Spent
from specllama.bench.report import Report
from specllama.bench.summary import Summary
from specllama.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")

_FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "PingFang SC",
    "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
)  # fmt: skip
"""matplotlib's own, and what systems have of Chinese, Japanese and Korean, to which it turns."""

_LONGEST_KIND = 28
"""Characters of a kind's name: longer ones would leave no room for the chart."""
_LONGEST_CAPTION = 150

# Paul Tol's "bright" and "muted" schemes, which people with colour blindness can tell apart.
_COLORS = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#332288", "#999933",
    "#882255", "#44AA99", "#DDCC77", "#117733", "#BBBBBB",
)  # fmt: skip
_GREY = "#555555"
_MARKERS = "osD^vP*Xh<>d"
_MOST_INTERVALS = 6
"""Arms whose intervals by kind can still be told apart."""
_FEW_TOKENS = 10
"""Fewer tested tokens say nothing about an acceptance."""
_SPREAD = 0.3
"""Of a place in the draft: arms stand beside each other there, so that equal ones are all seen."""
_FEW_SIZES = 3


def require(file: Path | None = None) -> None:
    """See that charts can be drawn, and written to `file`.

    Raises:
        UsageError: matplotlib is not installed, or the suffix names no format it knows.
    """
    try:
        import matplotlib.backend_bases
    except ImportError as error:
        raise UsageError(
            "Plots need matplotlib, which is not installed.", "Run: pip install 'specllama[plot]'"
        ) from error
    known = matplotlib.backend_bases.FigureCanvasBase.get_supported_filetypes()
    if file is not None and _format(file) not in known:
        raise UsageError(f"Cannot write a plot as {file.name}.", "Use a name that ends in .png.")


def _format(file: Path) -> str:
    return file.suffix.lstrip(".").lower() or "png"


def overview(report: Report, file: Path) -> None:
    """All charts in one file; the suffix of its name is the format.

    Raises:
        UsageError: see `require`.
    """
    require(file)
    drawn = _drawable(report)
    heights = [_height(name, report.summaries) for name in drawn]
    with _names_as_they_are():
        figure = _figure(11.0 + 2 * _room_for_names(report), sum(heights), report)
        rows = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)
        for name, (axes,) in zip(drawn, rows, strict=True):
            CHARTS[name](axes, report)
        _save(figure, file)


def save_all(report: Report, folder: Path) -> list[Path]:
    """Each chart as PNG and SVG in a folder; the paths.

    Raises:
        UsageError: see `require`.
    """
    require()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in _drawable(report):
        with _names_as_they_are():
            width = 10.0 + _room_for_names(report)
            figure = _figure(width, _height(name, report.summaries), report)
            CHARTS[name](figure.subplots(), report)
            for suffix in FORMATS:
                files.append(folder / f"{name}.{suffix}")
                _save(figure, files[-1])
    return files


def remove_all(folder: Path) -> None:
    """Remove the charts of an earlier report from a folder."""
    for name in FILES:
        if (folder / name).is_file():
            (folder / name).unlink()


@contextmanager
def _names_as_they_are() -> Iterator[None]:
    """People's names of kinds may have dollar signs, which matplotlib takes for formulas, and
    characters that all fonts here lack, of which it would warn; boxes stand for these."""
    import matplotlib

    with (
        warnings.catch_warnings(),
        matplotlib.rc_context({"text.parse_math": False, "font.family": _fonts()}),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def _fonts() -> list[str]:
    """Those of `_FONTS` that are installed; what one lacks is taken from the next."""
    from matplotlib import font_manager

    installed = {*font_manager.get_font_names()}
    return [name for name in _FONTS if name in installed]


def speedup(axes: Axes, report: Report) -> None:
    """Speed-up over all prompts with its interval, a row an arm."""
    summaries = report.summaries
    shown = _compared(summaries)
    for row, summary in enumerate(shown):
        if summary.speedup:
            _interval(axes, summary.speedup, row, summaries.index(summary))
    _arms(axes, shown)
    _baseline(axes)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_title("Speed-up over all prompts (95 % interval of each)")


def kinds(axes: Axes, report: Report) -> None:
    """Speed-up by kind: intervals for a few arms, a table in colours for many."""
    summaries = report.summaries
    shown = _compared(summaries)
    rows = _kinds(shown)
    if len(shown) > _MOST_INTERVALS:
        _heat(axes, shown, rows)
    else:
        _forest(axes, shown, rows, [summaries.index(summary) for summary in shown])
    axes.set_title("Speed-up by kind of prompt")


def _forest(
    axes: Axes, shown: Sequence[Summary], rows: Sequence[str], colors: Sequence[int]
) -> None:
    step = 0.8 / len(shown)
    for place, (summary, n) in enumerate(zip(shown, colors, strict=True)):
        for row, kind in enumerate(rows):
            if kind in summary.by_kind:
                offset = (place - (len(shown) - 1) / 2) * step
                _interval(axes, summary.by_kind[kind], row + offset, n)
        axes.plot([], [], _marker(n), color=_color(n), label=summary.label)
    _baseline(axes)
    axes.set_yticks(range(len(rows)), [_short(kind) for kind in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _legend(axes)


def _heat(axes: Axes, shown: Sequence[Summary], columns: Sequence[str]) -> None:
    """Blue is faster than plain decoding, red is slower; the scale is even in both directions."""
    values = np.full((len(shown), len(columns)), np.nan)
    for row, summary in enumerate(shown):
        for column, kind in enumerate(columns):
            if kind in summary.by_kind:
                values[row, column] = summary.by_kind[kind].value
    reach = float(np.nanmax(np.abs(np.log(values)))) or 1.0
    axes.imshow(np.log(values), cmap="RdBu", vmin=-1.4 * reach, vmax=1.4 * reach, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9)
    _arms(axes, shown)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    named = [_short(kind) for kind in columns]
    axes.set_xticks(range(len(columns)), named, rotation=20, ha="right")
    axes.spines[:].set_visible(False)


def tokens_per_round(axes: Axes, report: Report) -> None:
    """Mean tokens of a target batch."""
    summaries = report.summaries
    values = [summary.spec.tokens_per_round for summary in summaries]
    bars = axes.barh(range(len(values)), values, color=_COLORS[0], height=0.65)
    axes.bar_label(bars, [f" {value:.2f}" for value in values])
    _arms(axes, summaries)
    axes.set_xlim(0, max(values) * 1.12)
    axes.set_xlabel("tokens")
    axes.set_title("Tokens a round (plain decoding: 1)")


def acceptance(axes: Axes, report: Report) -> None:
    """Accepted of tested draft tokens by their place in the draft, where enough were tested."""
    summaries = report.summaries
    shown = [summary for summary in summaries if _depths(summary)]
    deepest = 1
    for place, summary in enumerate(shown):
        n, points = summaries.index(summary), _depths(summary)
        offset = _SPREAD * ((place + 0.5) / len(shown) - 0.5)
        deepest = max(deepest, *points)
        axes.plot([depth + offset for depth in points], list(points.values()), f"{_marker(n)}-",
                  color=_color(n), markersize=5, linewidth=1.4, clip_on=False,
                  label=summary.label)  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_xticks(range(1, deepest + 1))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("place in the draft")
    axes.set_title("Acceptance by depth")
    _legend(axes)


def _depths(summary: Summary) -> dict[int, float]:
    """Acceptance by place in the draft, from 1."""
    return {
        depth: stats.accepted / stats.tested
        for depth, stats in enumerate(summary.spec.by_depth, 1)
        if stats.tested >= _FEW_TOKENS
    }


def time_spent(axes: Axes, report: Report) -> None:
    """Milliseconds of decoding a token: the target's, the draft model's, and outside llama.cpp."""
    summaries = report.summaries
    left = [0.0] * len(summaries)
    for n, part in enumerate(Spent._fields):
        values = [getattr(summary.spent, part) * 1000 for summary in summaries]
        label = "outside llama.cpp" if part == "outside" else f"{part} model"
        axes.barh(range(len(values)), values, left=left, color=_color(n), height=0.65, label=label)
        left = [start + value for start, value in zip(left, values, strict=True)]
    _arms(axes, summaries)
    axes.set_xlim(0, max(left, default=1.0) * 1.12 or 1.0)
    axes.set_xlabel("milliseconds a token")
    axes.set_title("Where the time went")
    _legend(axes)


def reliability(axes: Axes, report: Report) -> None:
    """Observed acceptance over predicted; the larger a mark, the more tokens are behind it."""
    axes.plot([0, 1], [0, 1], "--", color=_GREY, linewidth=1)
    for n, summary in enumerate(report.summaries):
        bins = [entry for entry in summary.spec.reliability if entry.tested >= _FEW_TOKENS]
        if bins:
            predicted = [entry.predicted / entry.tested for entry in bins]
            observed = [entry.accepted / entry.tested for entry in bins]
            sizes = [12 + 110 * entry.tested / max(e.tested for e in bins) for entry in bins]
            axes.plot(predicted, observed, "-", color=_color(n), linewidth=1.2)
            axes.scatter(predicted, observed, sizes, color=_color(n), marker=_marker(n), alpha=0.8,
                         clip_on=False, label=summary.label)  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted acceptance", ylabel="observed")
    axes.set_title("Reliability: acceptance predicted and observed (dashed: perfect)")
    _legend(axes)


def costs(axes: Axes, report: Report) -> None:
    """Milliseconds of a target batch by its tokens; dashed: so many single decodes."""
    from matplotlib.ticker import MaxNLocator

    table = report.costs.same if report.costs else {}
    sizes = sorted(table)
    times = [table[n] * 1000 for n in sizes]
    axes.plot(sizes, times, "o-", color=_COLORS[0], markersize=4, linewidth=1.4, label="one batch")
    axes.plot([0, sizes[-1]], [0, sizes[-1] * times[0]], "--", color=_GREY, linewidth=1,
              label="one by one")  # fmt: skip
    axes.set(xlim=(0, sizes[-1] * 1.03), ylim=(0, max(times) * 1.15))
    axes.set(xlabel="tokens in the batch", ylabel="milliseconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("What a batch of the target costs")
    _legend(axes)


CHARTS: Mapping[str, Callable[[Axes, Report], None]] = {
    "speedup": speedup,
    "kinds": kinds,
    "tokens_per_round": tokens_per_round,
    "acceptance": acceptance,
    "time": time_spent,
    "reliability": reliability,
    "costs": costs,
}

FILES = tuple(f"{name}.{suffix}" for name in CHARTS for suffix in FORMATS)
"""What `save_all` may write."""


def _drawable(report: Report) -> list[str]:
    """The charts there are figures for."""
    summaries, missing = report.summaries, set()
    if not _compared(summaries):
        missing |= {"speedup", "kinds"}
    if not any(_depths(summary) for summary in summaries):
        missing.add("acceptance")
    if not any(sum(summary.spent) for summary in summaries):
        missing.add("time")
    if not any(bin.tested >= _FEW_TOKENS for s in summaries for bin in s.spec.reliability):
        missing.add("reliability")
    if report.costs is None or len(report.costs.same) < _FEW_SIZES:
        missing.add("costs")
    return [name for name in CHARTS if name not in missing]


def _compared(summaries: Sequence[Summary]) -> list[Summary]:
    """Those that say the target's text faster or slower: the draft alone would dwarf them."""
    return [one for one in summaries if one.speedup and one.arm.model == "target"]


def _kinds(shown: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(kind for summary in shown for kind in summary.by_kind))


def _height(name: str, summaries: Sequence[Summary]) -> float:
    """Inches."""
    shown = _compared(summaries)
    if name == "kinds" and len(shown) <= _MOST_INTERVALS:
        return max(3.0, 1.3 + len(_kinds(shown)) * (0.2 + 0.13 * len(shown)))
    if name == "costs":
        return 4.0
    if name in ("acceptance", "reliability"):
        return max(4.5 if name == "reliability" else 4.0, 1.0 + 0.22 * len(summaries))
    return 1.3 + 0.32 * len(shown if name in ("speedup", "kinds") else summaries)


def _room_for_names(report: Report) -> float:
    """Inches that long names of arms take on one side of a chart beyond what every chart has."""
    longest = max(len(summary.label) for summary in report.summaries)
    return 0.085 * max(0, longest - 20)


def _figure(width: float, height: float, report: Report) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height + 0.3))
    figure.set_layout_engine("constrained", h_pad=0.12)
    figure.supxlabel(_caption(report), x=0.99, ha="right", fontsize=8, color=_GREY)
    return figure


def _caption(report: Report) -> str:
    """Models, machine and day, as far as they are known."""
    facts = report.facts
    named = [(role, facts[role]["name"]) for role in ("target", "draft") if role in facts]
    day = str(facts.get("date", ""))[:10]
    parts = [*(f"{role} {name}" for role, name in named), str(facts.get("cpu", "")), day]
    return _short(", ".join(filter(None, parts)), _LONGEST_CAPTION)


def _short(text: str, longest: int = _LONGEST_KIND) -> str:
    """A text cut to so many characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file, format=_format(file), dpi=150)


def _interval(axes: Axes, ratio: Ratio, row: float, n: int) -> None:
    low, high = ratio.low, ratio.high
    if low is not None and high is not None:
        axes.plot([low, high], [row, row], "-", color=_color(n), linewidth=1.6)
    axes.plot([ratio.value], [row], _marker(n), color=_color(n), markersize=4.5)


def _baseline(axes: Axes) -> None:
    axes.axvline(1.0, color=_GREY, linewidth=1, linestyle="--")
    axes.set_xlabel("times the speed of plain decoding")
    axes.spines[["top", "right"]].set_visible(False)


def _arms(axes: Axes, summaries: Sequence[Summary]) -> None:
    axes.set_yticks(range(len(summaries)), [summary.label for summary in summaries])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes) -> None:
    """Beside the chart, where it hides nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)


def _color(n: int) -> str:
    return _COLORS[n % len(_COLORS)]


def _marker(n: int) -> str:
    return _MARKERS[n % len(_MARKERS)]
