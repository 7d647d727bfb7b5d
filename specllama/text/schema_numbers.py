"""Numbers within bounds as grammar expressions."""

from __future__ import annotations

from dataclasses import dataclass

from specllama.text.gbnf import alternatives, repeated

DIGITS = 16
_FRACTION = f'"." [0-9]{{1,{DIGITS}}}'
ANY_INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{DIGITS - 1}}})'
ANY_NUMBER = f"{ANY_INTEGER} ({_FRACTION})? ([eE] [-+]? [0-9]{{1,2}})?"


def integers(low: int | None, high: int | None) -> str:
    """All whole numbers from `low` to `high`, both included; some 16 digits where open.

    Raises:
        ValueError: there are none.
    """
    if low is None and high is None:
        return ANY_INTEGER
    if low is not None and high is not None and low > high:
        raise ValueError("no number lies between the bounds")
    options = []
    if low is None or low < 0:
        least = 1 if high is None else max(1, -high)
        options.append(f'"-" ({_natural(least, None if low is None else -low)})')
    if high is None or high >= 0:
        options.append(_natural(max(0, low or 0), high))
    return alternatives(options)


@dataclass(frozen=True, slots=True)
class Bound:
    """A whole number that bounds numbers, itself included or not."""

    at: int
    included: bool = True


def numbers(low: Bound | None, high: Bound | None) -> str:
    """All numbers between two bounds, without exponents; some 16 digits around the point.

    Raises:
        ValueError: there are none.
    """
    if low is None and high is None:
        return ANY_NUMBER
    if low is not None and high is not None:
        both = low.included and high.included
        if low.at > high.at or (low.at == high.at and not both):
            raise ValueError("no number lies between the bounds")
    zero, options = Bound(0), []
    if low is None or low.at < 0:
        least = zero if high is None or high.at > 0 else Bound(-high.at, high.included)
        most = None if low is None else Bound(-low.at, low.included)
        options.append(f'"-" ({_positive(least, most)})')
    if high is None or high.at > 0 or high == zero:
        options.append(_positive(zero if low is None or low.at < 0 else low, high))
    return alternatives(options)


def _positive(low: Bound, high: Bound | None) -> str:
    """Numbers between two bounds of 0 or more."""
    options = []
    first = low.at
    if not low.included:
        options.append(f'"{low.at}." [0-9]{{0,{DIGITS - 1}}} [1-9]')
        first += 1
    if high is None or first < high.at:
        whole = _natural(first, None if high is None else high.at - 1)
        options.append(f"({whole}) ({_FRACTION})?")
    if high is not None and high.included:
        options.append(f'"{high.at}" ("." "0"{{1,{DIGITS}}})?')
    return alternatives(options)


def _natural(low: int, high: int | None) -> str:
    """Whole numbers of 0 or more, by their number of digits."""
    n_low = len(str(low))
    n_high = n_low if high is None else len(str(high))
    options = []
    for digits in range(n_low, n_high + 1):
        least = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        most = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        options.append(_same_length(str(least), str(most)))
    if high is None:
        options.append(f"[1-9] {repeated('[0-9]', n_low, max(n_low, DIGITS - 1))}")
    return alternatives(options)


def _same_length(low: str, high: str) -> str:
    """Digits that read as a number between two of the same length."""
    if not low:
        return ""
    rest = len(low) - 1
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeated("[0-9]", len(low), len(low))
    if low[0] == high[0]:
        return f'"{low[0]}" {_grouped(_same_length(low[1:], high[1:]))}'.rstrip()
    if not rest:
        return f"[{low}-{high}]"
    if set(low[1:]) == {"0"} and set(high[1:]) == {"9"}:
        return f"[{low[0]}-{high[0]}] {repeated('[0-9]', rest, rest)}"
    options = [f'"{low[0]}" {_grouped(_same_length(low[1:], "9" * rest))}']
    if int(high[0]) - int(low[0]) > 1:
        between = f"[{int(low[0]) + 1}-{int(high[0]) - 1}]"
        options.append(f"{between} {repeated('[0-9]', rest, rest)}")
    options.append(f'"{high[0]}" {_grouped(_same_length("0" * rest, high[1:]))}')
    return alternatives(options)


def _grouped(expression: str) -> str:
    return f"({expression})" if "|" in expression else expression
