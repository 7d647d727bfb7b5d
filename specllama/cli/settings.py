"""Every setting's value and where it came from.

Precedence: flag > $SPECLLAMA_* > ./specllama.toml > user config > alias > default. The names are
the long flags with underscores (`draft_max`, `ctx_size`); config files may also write hyphens.
Only `KEYS` are settings: other flags (`--grammar`, `--port`) are flags alone. Defaults are
those of specllama/options.py and live only there.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from specllama.cli.output import out
from specllama.errors import UsageError
from specllama.hub import aliases
from specllama.hub.paths import PROJECT_CONFIG, user_config
from specllama.options import GenerationParams, ModelOptions
from specllama.sampling.params import SamplingParams

Kind = Literal["text", "whole number", "number", "true or false", "layers", "texts", "numbers"]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its kind, and the option class and field it fills (None: used by commands)."""

    kind: Kind
    owner: type | None = None
    field: str = ""

    @property
    def default(self) -> Any:
        """The option class's own default."""
        if self.owner is None:
            return False if self.kind == "true or false" else None
        (field,) = (f for f in fields(self.owner) if f.name == self.field)
        return field.default if field.default is not MISSING else None


def _model(kind: Kind, field: str) -> Key:
    return Key(kind, ModelOptions, field)


def _generation(kind: Kind, field: str) -> Key:
    return Key(kind, GenerationParams, field)


def _sampling(kind: Kind, field: str) -> Key:
    return Key(kind, SamplingParams, field)


KEYS: Mapping[str, Key] = MappingProxyType(
    {
        "target": Key("text"),
        "draft": Key("text"),
        "system": Key("text"),
        "offline": Key("true or false"),
        "drafter": _generation("text", "drafter"),
        "draft_max": _generation("whole number", "draft_max"),
        "draft_p_min": _generation("number", "draft_p_min"),
        "adaptive": _generation("true or false", "adaptive"),
        "tree": _generation("text", "tree"),
        "copy_input": _generation("true or false", "copy_input"),
        "verify": _generation("text", "verify"),
        "lossy": _generation("true or false", "lossy"),
        "ngram": _model("text", "ngram"),
        "store": _model("true or false", "store"),
        "translate": _model("true or false", "translate"),
        "max_tokens": _generation("whole number", "max_tokens"),
        "seed": _generation("whole number", "seed"),
        "stop": _generation("texts", "stop"),
        "temp": _sampling("number", "temperature"),
        "top_k": _sampling("whole number", "top_k"),
        "top_p": _sampling("number", "top_p"),
        "min_p": _sampling("number", "min_p"),
        "typical_p": _sampling("number", "typical_p"),
        "repeat_last_n": _sampling("whole number", "repeat_last_n"),
        "repeat_penalty": _sampling("number", "repeat_penalty"),
        "frequency_penalty": _sampling("number", "frequency_penalty"),
        "presence_penalty": _sampling("number", "presence_penalty"),
        "ctx_size": _model("whole number", "n_ctx"),
        "batch_size": _model("whole number", "n_batch"),
        "gpu_layers": _model("layers", "gpu_layers"),
        "draft_gpu_layers": _model("layers", "draft_gpu_layers"),
        "main_gpu": _model("whole number", "main_gpu"),
        "tensor_split": _model("numbers", "tensor_split"),
        "device": _model("text", "device"),
        "draft_device": _model("text", "draft_device"),
        "threads": _model("whole number", "threads"),
        "threads_batch": _model("whole number", "threads_batch"),
        "draft_threads": _model("whole number", "draft_threads"),
        "flash_attn": _model("text", "flash_attn"),
        "cache_type_k": _model("text", "cache_type_k"),
        "cache_type_v": _model("text", "cache_type_v"),
        "exact": _model("true or false", "exact"),
    }
)
"""All settings. -1 means "no limit" for max_tokens and "draw one" for seed, as in llama.cpp."""

_PREFIX = "SPECLLAMA_"
_OTHER_VARIABLES = (
    "SPECLLAMA_HOME",
    "SPECLLAMA_API_KEY",
    "SPECLLAMA_NO_HISTORY",
    "SPECLLAMA_GRAPHS",
)
"""Variables that are no settings: hub/paths.py, cli/serve.py and cli/repl_history.py read them."""

BY_FIELD = {key.field: name for name, key in KEYS.items() if key.owner is not None}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: "flag", "env SPECLLAMA_TEMP", a file, "alias qwen" or "default"."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings of one run.

    `settings["temp"]` is the value, `settings.entries["temp"].source` where it came from.
    `target` and `draft` are names for `specllama.hub.resolve`, or None; `draft` "none" is off.
    """

    entries: Mapping[str, Setting]

    def __getitem__(self, key: str) -> Any:
        return self.entries[key].value

    def model_options(self) -> ModelOptions:
        """How to load the models."""
        return ModelOptions(**self._fields_of(ModelOptions))

    def generation_params(self) -> GenerationParams:
        """How to generate. (A logit bias is not a setting: add it with dataclasses.replace.)"""
        sampling = SamplingParams(**self._fields_of(SamplingParams))
        return GenerationParams(sampling=sampling, **self._fields_of(GenerationParams))

    def _fields_of(self, owner: type) -> dict[str, Any]:
        return {key.field: self[name] for name, key in KEYS.items() if key.owner is owner}


def load(flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge all sources. `flags` holds what the command line gave; None is "not given".

    Variables that look like settings and are none are warned of.

    A flag goes by its name here or by the name of the option field it fills (`temp` is
    `temperature`).

    Raises:
        UsageError: an unknown key, a wrong type or a value out of range; names the source and key.
    """
    _warn_of(tuple(unknown_variables()))
    given = {BY_FIELD.get(name, name): v for name, v in (flags or {}).items() if v is not None}
    layers = [
        _checked(given, "flag"),
        _environment(),
        _file(Path(PROJECT_CONFIG)),
        _file(user_config()),
    ]
    entries = {name: Setting(key.default, "default") for name, key in KEYS.items()}
    for layer in reversed(layers):
        entries |= layer
    return Settings(MappingProxyType(_with_alias(entries)))


def _with_alias(entries: dict[str, Setting]) -> dict[str, Setting]:
    """Replace an alias by what it stands for; its draft only fills what nobody set."""
    name = entries["target"].value
    alias = aliases.load().get(name) if name else None
    if alias is None:
        return entries
    source = f"alias {name}"
    entries["target"] = Setting(alias.target, source)
    for key, value in (("draft", alias.draft), ("draft_max", alias.draft_max)):
        if value is not None and entries[key].source == "default":
            entries[key] = Setting(_value(key, value, source), source)
    return entries


def unknown_variables() -> list[str]:
    """The SPECLLAMA_* variables that are set and that nothing reads."""
    known = {*_OTHER_VARIABLES, *(f"{_PREFIX}{name.upper()}" for name in KEYS)}
    return sorted(
        name
        for name, value in os.environ.items()
        if name.startswith(_PREFIX) and value and name not in known
    )


@cache
def _warn_of(variables: tuple[str, ...]) -> None:
    """Say it once, however often settings are loaded."""
    for variable in variables:
        close = get_close_matches(variable.removeprefix(_PREFIX).lower(), KEYS, n=1)
        hint = (
            f"Did you mean {_PREFIX}{close[0].upper()}?"
            if close
            else "`specllama config show` lists all."
        )
        out.warn(f"{variable} is no setting. {hint}")


def _environment() -> dict[str, Setting]:
    layer = {}
    for name, key in KEYS.items():
        variable = f"{_PREFIX}{name.upper()}"
        if text := os.environ.get(variable):
            source = f"env {variable}"
            layer[name] = Setting(_value(name, parse(key.kind, text), source), source)
    return layer


def _file(path: Path) -> dict[str, Setting]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", "Correct or delete it.") from error
    return _checked({name.replace("-", "_"): value for name, value in content.items()}, str(path))


def _checked(layer: Mapping[str, Any], source: str) -> dict[str, Setting]:
    entries = {}
    for name, value in layer.items():
        if name not in KEYS:
            close = get_close_matches(name, KEYS, n=1)
            hint = (
                f"Did you mean {close[0]!r}?"
                if close
                else "`specllama config show` lists all keys."
            )
            raise UsageError(f"Unknown key {name!r} in {source}.", hint)
        entries[name] = Setting(_value(name, value, source), source)
    return entries


def _value(name: str, value: Any, source: str) -> Any:
    """`value` in the form the option class takes, checked for type and range."""
    key = KEYS[name]
    where = f"--{name.replace('_', '-')}" if source == "flag" else f"{name} ({source})"
    converted = _convert(key.kind, value)
    if converted is None:
        raise UsageError(f"{where} must be {_EXPECTED[key.kind]}, not {value!r}.")
    if name in ("seed", "max_tokens") and converted == -1:
        return None
    if name in ("target", "draft") and not converted:
        raise UsageError(f"{where} is empty.", "Name a model, or leave it out.")
    if key.owner is not None:
        try:
            key.owner(**{key.field: converted})
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", error.hint) from error
    return converted


_EXPECTED: Mapping[Kind, str] = MappingProxyType(
    {
        "text": "text",
        "whole number": "a whole number",
        "number": "a number",
        "true or false": "true or false",
        "layers": 'a whole number or "all"',
        "texts": "a list of texts",
        "numbers": "a list of numbers",
    }
)


def _convert(kind: Kind, value: Any) -> Any:
    """The value as `kind`, or None if it is not one (a bool is not a number here)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "text":
            return value if isinstance(value, str) else None
        case "true or false":
            return value if isinstance(value, bool) else None
        case "whole number":
            return value if is_number and isinstance(value, int) else None
        case "number":
            return _float(value) if is_number else None
        case "layers":
            return -1 if value in ("all", "auto") else _convert("whole number", value)
        case "texts" | "numbers":
            return _convert_all("text" if kind == "texts" else "number", value)


def _float(value: float) -> float:
    """Whole numbers too large for one become infinite, which every range check refuses."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _convert_all(kind: Kind, values: Any) -> tuple[Any, ...] | None:
    if not isinstance(values, list | tuple):
        return None
    converted = tuple(_convert(kind, value) for value in values)
    return None if None in converted else converted


_WORDS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def parse(kind: Kind, text: str) -> Any:
    """A typed text as the value a TOML file would hold; the text itself if it is none."""
    if kind == "text":
        return text
    if kind == "texts":
        return [text]
    if kind == "numbers":
        return [parse("number", part) for part in text.split(",")]
    if kind == "true or false":
        return _WORDS.get(text.lower(), text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
