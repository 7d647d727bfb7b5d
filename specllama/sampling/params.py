"""The sampling settings of one request: llama.cpp's names, defaults and meaning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from operator import index
from typing import Any

from specllama.errors import UsageError

LARGEST = 1e30
"""Of a bias or a temperature: far from where float32 ends, also after a penalty."""

_STRONGEST = 1e6
_MOST_IDS = 2**31  # llama.cpp's ids have 32 bits and a sign


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of the sampling chain, in the order they are applied (llama.cpp's order).

    `logit_bias` maps token ids to an addend (-inf forbids a token). `repeat_last_n` is how many of
    the latest tokens, prompt included, the penalties look at (-1: all of them). `top_k` 0,
    `top_p` 1, `min_p` 0, `typical_p` 1 and the neutral penalties switch a step off.
    `temperature` 0 is greedy.

    Raises:
        UsageError: a value outside its range, with the range in the message.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    top_k: int = 40
    typical_p: float = 1.0
    top_p: float = 0.95
    min_p: float = 0.05
    temperature: float = 0.8

    def __post_init__(self) -> None:
        check_types(self)
        _check("temperature", self.temperature, 0.0, LARGEST)
        _check("top_k", self.top_k, 0, math.inf)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("typical_p", self.typical_p, 0.0, 1.0)
        _check("repeat_last_n", self.repeat_last_n, -1, math.inf)
        _check("repeat_penalty", self.repeat_penalty, 1 / _STRONGEST, _STRONGEST)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_biases()

    def _check_biases(self) -> None:
        if not (
            isinstance(self.logit_bias, Mapping)
            and all(isinstance(token, Integral) for token in self.logit_bias)
            and all(isinstance(bias, Real) for bias in self.logit_bias.values())
        ):
            raise UsageError("logit_bias maps token ids, which are whole numbers, to numbers.")
        if any(not 0 <= token < _MOST_IDS for token in self.logit_bias):
            raise UsageError("logit_bias names tokens by ids of 0 and above, below 2^31.")
        if any(bias != -math.inf and not abs(bias) <= LARGEST for bias in self.logit_bias.values()):
            raise UsageError(
                f"logit_bias values must be at most {LARGEST:g} in size, or -inf to forbid a token."
            )

    @property
    def penalises(self) -> bool:
        """Whether the history changes the logits at all."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )


def check_types(settings: Any) -> None:
    """Refuse a setting that is no number or no text where one is meant.

    Whole numbers become Python's own: numpy's overflow in the arithmetic of seeds.
    """
    for setting in fields(settings):
        kind = getattr(setting.type, "__name__", setting.type)
        name, value = setting.name, getattr(settings, setting.name)
        if value is None and "None" in kind:
            continue
        kind = kind.removesuffix(" | None")
        if kind == "int":
            try:
                object.__setattr__(settings, name, index(value))
            except TypeError:
                raise UsageError(f"{name} must be a whole number, not {value!r}.") from None
        elif kind == "float" and not isinstance(value, Real):
            raise UsageError(f"{name} must be a number, not {value!r}.")
        elif kind == "str" and not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {value!r}.")


def _check(name: str, value: float, low: float, high: float) -> None:
    # no math.isinf: a whole number may be larger than any float
    if not low <= value <= high or value == math.inf:
        upper = "" if math.isinf(high) else f" and at most {high:g}"
        raise UsageError(f"{name} must be at least {low:g}{upper}, not {value}.")
