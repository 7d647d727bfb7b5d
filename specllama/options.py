"""The two sets of settings people give: how models are loaded, and how one text is generated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from specllama.errors import UsageError
from specllama.sampling.params import SamplingParams, check_types

FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
MAX_PARALLEL = 225
"""llama.cpp counts 256 sequences at most; 31 of them are branches of trees (loading.py)."""
MAX_THREADS = 512
"""GGML_MAX_N_THREADS: with more, llama.cpp crashes."""
MAX_CELLS = 2**31 - 256
"""Of a context: llama.cpp counts in 32 bits, and rounds up to 256."""
WHOLE_CACHE_TYPES: tuple[CacheType, ...] = ("f32", "f16", "bf16")
"""Those that llama.cpp reads without flash attention."""
VerifyName = Literal[
    "auto",
    "coupled",
    "rejection",
    "block",
    "match",
    "rrs",
    "rrs-iid",
    "spectr",
    "greedy-one",
    "traversal",
    "typical",
    "rejection-lenient",
]

DRAFTER_NAMES = (
    "model",
    "suffix",
    "text",
    "store",
    "ngram",
    "recycle",
    "staged",
    "tree",
    "staged-tree",
)
_MOST_CTX = 8192
TREE_DRAFTERS = frozenset({"tree", "staged-tree"})
"""Drafters that `GenerationParams.tree` gives the shape of."""
AUTO_DRAFTERS = ("model", "suffix", "text", "store", "ngram")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How target and draft are loaded. `None` leaves a choice to llama.cpp.

    Attributes:
        n_ctx: context length in tokens, of each conversation; 0 takes the model's own, capped at
            8192.
        parallel: how many generations can run at once (`Pool`), at most 225. The KV cache has
            `n_ctx` cells for each, half as many (and so on) where that does not fit into memory;
            it is shared.
        n_batch: the most tokens one decode takes (prompt chunks), at least 2.
        gpu_layers, draft_gpu_layers: layers to offload; -1 is all of them.
        main_gpu: the GPU, counted from 0, that holds both models; None uses all there are.
        tensor_split: share of each GPU in the target.
        device, draft_device: the one device of each model ("CUDA1", "Metal", "CPU").
        threads, threads_batch, draft_threads: CPU threads for single, batched and draft decodes.
        cache_type_k, cache_type_v: number formats of the KV cache.
        ngram: an n-gram file (`specllama ngram build`) to draft from.
        store: keep answers on this machine, and draft from them when the like is asked again.
        translate: a draft with another vocabulary is not refused; its guesses go through text.
        exact: choose the configuration in which batched and single decodes give the same bits
            where the machine allows it (docs/exactness.md).
    """

    n_ctx: int = 0
    parallel: int = 1
    n_batch: int = 512
    gpu_layers: int = -1
    draft_gpu_layers: int = -1
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    device: str | None = None
    draft_device: str | None = None
    threads: int | None = None
    threads_batch: int | None = None
    draft_threads: int | None = None
    flash_attn: FlashAttention = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    ngram: str | Path | None = None
    store: bool = False
    translate: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        _between("n_ctx", self.n_ctx, 0, MAX_CELLS)
        _between("parallel", self.parallel, 1, MAX_PARALLEL)
        if self.n_ctx * self.parallel > MAX_CELLS:
            raise UsageError(
                f"{self.parallel} contexts of {self.n_ctx} tokens are more than llama.cpp counts.",
                "Take a smaller context.",
            )
        _at_least("n_batch", self.n_batch, 2)
        _at_least("gpu_layers", self.gpu_layers, -1)
        _at_least("draft_gpu_layers", self.draft_gpu_layers, -1)
        if self.main_gpu is not None:
            _at_least("main_gpu", self.main_gpu, 0)
        self._check_split()
        for name in ("threads", "threads_batch", "draft_threads"):
            value = getattr(self, name)
            if value is not None:
                _between(name, value, 1, MAX_THREADS)
        _one_of("flash_attn", self.flash_attn, get_args(FlashAttention))
        _one_of("cache_type_k", self.cache_type_k, get_args(CacheType))
        _one_of("cache_type_v", self.cache_type_v, get_args(CacheType))

    def _check_split(self) -> None:
        given: Any = self.tensor_split
        shares = None if isinstance(given, str) else _as_tuple(given)
        if shares is None or not all(isinstance(share, Real) for share in shares):
            raise UsageError(f"tensor_split is several shares, not {given!r}.", "Write (2, 1).")
        for share in shares:
            if not 0.0 <= share < float("inf"):
                raise UsageError(f"tensor_split must be shares of at least 0, not {share}.")
        object.__setattr__(self, "tensor_split", shares)

    def context_of(self, n_trained: int | None) -> int:
        """The context length of a model that was trained for so many tokens (see `n_ctx`)."""
        return self.n_ctx or min(n_trained or _MOST_CTX, _MOST_CTX)

    def attention(self, offloaded: bool) -> dict[str, str]:
        """Flash attention and the KV cache's formats, as they take effect on a model.

        On CPUs llama.cpp's flash attention takes the tokens of a batch one by one, which behind
        some hundred tokens is slower than attention without it, the more so for batches of drafts
        (docs/performance.md). A quantised V cache needs it all the same, and with it and a bf16
        cache, batches get the bits of single decodes.

        Args:
            offloaded: whether a device other than the CPU has weights of the model.
        """
        if self.exact:
            return {"flash_attn": "on", "cache_type_k": "bf16", "cache_type_v": "bf16"}
        slow = not offloaded and self.cache_type_v in WHOLE_CACHE_TYPES
        return {
            "flash_attn": "off" if self.flash_attn == "auto" and slow else self.flash_attn,
            "cache_type_k": self.cache_type_k,
            "cache_type_v": self.cache_type_v,
        }


def micro_batch(n_batch: int, flash_attn: str) -> int:
    """How many tokens of a prompt llama.cpp computes at once.

    Without flash attention the scores of all of them are kept (heads x context x tokens); more
    than 128 made prompts no faster there.
    """
    return min(n_batch, 128) if flash_attn == "off" else n_batch


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How one text is generated.

    Attributes:
        max_tokens: None generates until the model ends or the context is full.
        seed: None draws one (the result says which).
        stop: strings that end the text; they are not part of it.
        grammar: a GBNF grammar (llama.cpp's notation) that the text has to follow.
        json_schema: a JSON schema instead, as text or as data; {"type": "object"} is any object.
        verify: the verification rule; "auto" is coupled when a seed is given, else block
            (greedy-one for trees).
        lossy: accept a rule that changes what the model says ("typical", "rejection-lenient").
        drafter: "auto" (AUTO_DRAFTERS), "none", or names joined by "+" (see DRAFTER_NAMES).
        tree: shape of a draft model's trees: "value" grows them by probability (EAGLE-2), "planned"
            plans them from measurements (Sequoia), "2,2,1" are children per level.
        predict: a text that the reply will probably resemble (a file to be edited).
        copy_input: the prompt itself is such a text (corrections, rewriting).
        draft_max: the most tokens drafted in a row; long blocks are for copies, which the scheduler
            tells from the rest.
        draft_p_min: stop drafting when the draft's top probability is below this.
        logprobs: tell the log-probability of each token, which costs a pass over the vocabulary.
        top_logprobs: tell those of this many most probable tokens as well.
        adaptive: let the scheduler choose lengths; False always drafts `draft_max`.
    """

    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    verify: VerifyName = "auto"
    lossy: bool = False
    drafter: str = "auto"
    tree: str = "value"
    predict: str = ""
    copy_input: bool = False
    draft_max: int = 48
    draft_p_min: float = 0.0
    logprobs: bool = True
    top_logprobs: int = 0
    adaptive: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        if not isinstance(self.sampling, SamplingParams):
            raise UsageError(f"sampling must be SamplingParams, not {self.sampling!r}.")
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 0)
        _at_least("draft_max", self.draft_max, 0)
        _at_least("top_logprobs", self.top_logprobs, 0)
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"seed must be between 0 and 2^64 - 1, not {self.seed}.")
        if not 0.0 <= self.draft_p_min <= 1.0:
            raise UsageError(f"draft_p_min must be between 0 and 1, not {self.draft_p_min}.")
        self._check_stops()
        self._check_grammar()
        _one_of("verify", self.verify, get_args(VerifyName))
        for name in self.drafters():
            _one_of("drafter", name, DRAFTER_NAMES)
        self.tree_widths()

    def _check_stops(self) -> None:
        """One text alone would be read as a stop string for each of its characters."""
        given: Any = self.stop
        stops = None if isinstance(given, str) else _as_tuple(given)
        if stops is None or not all(isinstance(stop, str) for stop in stops):
            raise UsageError(
                f"Stop strings are several texts, not {self.stop!r}.", 'Write stop=("END",).'
            )
        if not all(stops):
            raise UsageError("A stop string must not be empty.")
        object.__setattr__(self, "stop", stops)

    def _check_grammar(self) -> None:
        if self.grammar is not None and self.json_schema is not None:
            raise UsageError("A grammar and a JSON schema were given.", "Give one of them.")
        if self.grammar is not None and not self.grammar.strip():
            raise UsageError("The grammar is empty.")
        self.schema()

    def schema(self) -> Mapping[str, Any] | bool | None:
        """The JSON schema as data, None without one."""
        if not isinstance(self.json_schema, str):
            return self.json_schema
        try:
            schema = json.loads(self.json_schema)
        except ValueError as error:
            raise UsageError(f"The JSON schema is not JSON: {error}.") from error
        if not isinstance(schema, dict | bool):
            raise UsageError(f"A JSON schema is an object, not {self.json_schema.strip()[:40]}.")
        return schema

    def tree_widths(self) -> tuple[int, ...]:
        """Children per level where `tree` gives them, else empty."""
        if self.tree in ("value", "planned"):
            return ()
        try:
            widths = tuple(int(part) for part in self.tree.split(","))
        except ValueError:
            widths = (0,)
        if min(widths) < 1:
            raise UsageError(
                f"Cannot read the tree {self.tree!r}.",
                "Write value, planned, or children per level as 2,2,1.",
            )
        return widths

    def drafters(self) -> tuple[str, ...]:
        """The drafters asked for, in order of preference; empty for plain decoding."""
        if self.drafter == "none":
            return ()
        return AUTO_DRAFTERS if self.drafter == "auto" else tuple(self.drafter.split("+"))

    @property
    def drafts_trees(self) -> bool:
        """Whether one of them makes trees, which not every rule judges."""
        return not TREE_DRAFTERS.isdisjoint(self.drafters())

    @property
    def has_text(self) -> bool:
        """Whether the reply is said to resemble a text: a predicted one, or its prompt."""
        return bool(self.predict) or self.copy_input


@dataclass(frozen=True, slots=True)
class BeamParams:
    """How beam search goes. It has no randomness, and no settings of the sampling chain.

    Attributes:
        width: beams that live at once.
        n_best: hypotheses to return, at most `width`; None returns `width`.
        max_tokens: the most tokens of a hypothesis, an end token included; None goes on until
            hypotheses have ended or the context is full.
        length_penalty: a hypothesis of n tokens (an end token included) has the score
            logprob / n ** length_penalty.
        early_stopping: stop at `width` finished hypotheses; otherwise the search goes on while a
            live beam has a better score than the worst of them.
        drafter: "auto" (the draft model, without one "recycle"), "model", "recycle", or "none".
        draft_max: the most levels of a drafted tree.
        adaptive: draft what saves time by measurements of this machine; False drafts for the fewest
            target batches.
    """

    width: int = 4
    n_best: int | None = None
    max_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False
    drafter: str = "auto"
    draft_max: int = 16
    adaptive: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        _at_least("width", self.width, 1)
        if self.n_best is not None and not 1 <= self.n_best <= self.width:
            raise UsageError(f"n_best must be between 1 and {self.width}, not {self.n_best}.")
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 1)
        if not -10.0 <= self.length_penalty <= 10.0:
            raise UsageError(f"length_penalty must be from -10 to 10, not {self.length_penalty}.")
        _at_least("draft_max", self.draft_max, 0)
        _one_of("drafter", self.drafter, ("auto", "model", "recycle", "none"))


def _as_tuple(values: Any) -> tuple[Any, ...] | None:
    """All of what can be iterated, None for what cannot."""
    try:
        return tuple(values)
    except TypeError:
        return None


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise UsageError(f"{name} must be at least {low}, not {value}.")


def _between(name: str, value: int, low: int, high: int) -> None:
    _at_least(name, value, low)
    if value > high:
        raise UsageError(f"{name} must be at most {high}, not {value}.")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"Unknown {name} {value!r}. Choose from: {', '.join(choices)}.")
