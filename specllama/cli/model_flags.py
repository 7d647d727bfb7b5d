"""The options that generate, chat, bench and serve share, and what they mean.

`ModelFlags` declares each option once, as a Typer annotation; `with_model_flags` adds them to a
command. Fields carry the names of the settings (cli/settings.py), which merges them with
environment, config, alias and default; None means "not given".
"""

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import Field, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from specllama.cli import settings
from specllama.cli.generate_stream import ctrl_c_afterwards
from specllama.cli.output import out
from specllama.cli.settings import Settings
from specllama.errors import ModelError, UsageError
from specllama.options import CacheType, FlashAttention, GenerationParams, ModelOptions, VerifyName

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder
    from specllama.hub.resolve import ResolvedPair


def _options_of(panel: str) -> Callable[..., Any]:
    """A `typer.Option` whose help stands in a panel of that name."""

    def option(meaning: str, *names: str, metavar: str | None = None) -> Any:
        return typer.Option(*names, help=meaning, metavar=metavar, rich_help_panel=panel)

    return option


_model = _options_of("Model")
_prompt = _options_of("Prompt")
_drafting = _options_of("Drafting")
_sampling = _options_of("Sampling")
_machine = _options_of("Machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """What people typed; None where they typed nothing."""

    # fmt: off
    target: Annotated[str | None, _model(
        "Model to answer with: a GGUF path, an alias, a name of `list --catalogue` or "
        "user/repo[:QUANT].",
        "-m", "--target", "--model", metavar="MODEL")] = None
    draft: Annotated[str | None, _model(
        "Small model that guesses ahead, or none.",
        "-md", "--draft", "--model-draft", "--draft-model", metavar="MODEL")] = None
    translate: Annotated[bool | None, _model(
        "Allow a draft with another vocabulary: its guesses go through text (off).",
        "--translate/--no-translate")] = None
    chat_template: Annotated[Path | None, _model(
        "Jinja chat template to use instead of the model's own.",
        "--chat-template", metavar="FILE")] = None
    offline: Annotated[bool | None, _model(
        "Never go to the network.", "--offline/--no-offline")] = None
    ctx_size: Annotated[int | None, _model(
        "Context length in tokens; 0 takes the model's own, at most 8192.",
        "-c", "--ctx-size", metavar="N")] = None
    batch_size: Annotated[int | None, _model(
        "Most tokens of a prompt to decode at once (512).",
        "-b", "--batch-size", metavar="N")] = None

    max_tokens: Annotated[int | None, _prompt(
        "Most tokens to generate; -1 goes on until the end.",
        "-n", "--max-tokens", "--predict", metavar="N")] = None
    system: Annotated[str | None, _prompt(
        "System prompt.", "-sys", "--system", metavar="TEXT")] = None
    system_file: Annotated[Path | None, _prompt(
        "File with the system prompt.", "-sysf", "--system-file", metavar="FILE")] = None
    stop: Annotated[list[str] | None, _prompt(
        "End the text before this string (repeatable).", "--stop", metavar="TEXT")] = None
    json_schema: Annotated[str | None, _prompt(
        "JSON schema the answer has to follow; {} is any JSON.",
        "-j", "--json-schema", metavar="JSON")] = None
    json_schema_file: Annotated[Path | None, _prompt(
        "File with such a schema.", "-jf", "--json-schema-file", metavar="FILE")] = None
    grammar: Annotated[str | None, _prompt(
        "Grammar the answer has to follow, in llama.cpp's notation (GBNF).",
        "--grammar", metavar="GBNF")] = None
    grammar_file: Annotated[Path | None, _prompt(
        "File with such a grammar.", "--grammar-file", metavar="FILE")] = None

    drafter: Annotated[str | None, _drafting(
        "auto, none, or drafters joined by +: model, suffix, text, store, ngram, recycle, staged, "
        "tree, staged-tree.",
        "--drafter", metavar="NAMES")] = None
    draft_max: Annotated[int | None, _drafting(
        "Most tokens to draft in a row (48).",
        "--draft-max", "--num-draft-tokens", metavar="N")] = None
    draft_p_min: Annotated[float | None, _drafting(
        "Stop drafting when the draft's top probability is under P (0 = off).",
        "--draft-p-min", metavar="P")] = None
    adaptive: Annotated[bool | None, _drafting(
        "Choose draft lengths from measurements; off always drafts --draft-max.",
        "--adaptive/--no-adaptive")] = None
    tree: Annotated[str | None, _drafting(
        "Shape of the draft model's trees: value (by probability), planned (from measurements), or "
        "children per level as 2,2,1 (value).", "--tree", metavar="SHAPE")] = None
    ngram: Annotated[str | None, _drafting(
        "N-gram file to draft from (specllama ngram build makes one).",
        "--ngram", metavar="FILE")] = None
    store: Annotated[bool | None, _drafting(
        "Keep answers on this machine, and draft from them (off).", "--store/--no-store")] = None
    predict_file: Annotated[Path | None, _drafting(
        "Text that the answer will resemble, such as a file to edit.",
        "--predict-file", metavar="FILE")] = None
    copy_input: Annotated[bool | None, _drafting(
        "The answer will resemble the prompt (corrections, rewriting).",
        "--copy-input/--no-copy-input")] = None
    verify: Annotated[VerifyName | None, _drafting(
        "Rule that checks drafts; chains: coupled, block, rejection, match; trees: coupled, match, "
        "rrs, rrs-iid, spectr, greedy-one, traversal; auto is coupled with a seed, else "
        "block (greedy-one for trees).",
        "--verify", metavar="RULE")] = None
    lossy: Annotated[bool | None, _drafting(
        "Accept a rule that changes what the model says: --verify typical, rejection-lenient.",
        "--lossy/--no-lossy")] = None
    exact: Annotated[bool | None, _drafting(
        "Choose the configuration that gives the same bits with and without drafts.",
        "--exact/--no-exact")] = None

    temp: Annotated[float | None, _sampling(
        "Temperature; 0 is greedy (0.8).",
        "--temp", "--temperature", metavar="T")] = None
    top_k: Annotated[int | None, _sampling(
        "Keep the K most probable tokens; 0 = all (40).",
        "--top-k", metavar="K")] = None
    top_p: Annotated[float | None, _sampling(
        "Keep the smallest set of this probability; 1 = off (0.95).",
        "--top-p", metavar="P")] = None
    min_p: Annotated[float | None, _sampling(
        "Drop tokens under P times the top probability; 0 = off (0.05).",
        "--min-p", metavar="P")] = None
    typical_p: Annotated[float | None, _sampling(
        "Locally typical sampling; 1 = off (1).",
        "--typical", "--typical-p", metavar="P")] = None
    repeat_penalty: Annotated[float | None, _sampling(
        "Divide the logits of recent tokens; 1 = off (1).",
        "--repeat-penalty", metavar="X")] = None
    repeat_last_n: Annotated[int | None, _sampling(
        "How many recent tokens the penalties see; -1 = all (64).",
        "--repeat-last-n", metavar="N")] = None
    frequency_penalty: Annotated[float | None, _sampling(
        "Penalty for each earlier occurrence (0).",
        "--frequency-penalty", metavar="X")] = None
    presence_penalty: Annotated[float | None, _sampling(
        "Penalty for having occurred (0).",
        "--presence-penalty", metavar="X")] = None
    logit_bias: Annotated[list[str] | None, _sampling(
        "Add to a token's logit, as 15043+1.5 or 15043-inf (repeatable).",
        "-l", "--logit-bias", metavar="ID±VALUE")] = None
    seed: Annotated[int | None, _sampling(
        "Seed; -1 draws one.", "-s", "--seed", metavar="N")] = None

    gpu_layers: Annotated[str | None, _machine(
        "Layers of the target on the GPU (all).",
        "-ngl", "--gpu-layers", metavar="N|all")] = None
    draft_gpu_layers: Annotated[str | None, _machine(
        "Layers of the draft on the GPU (all).",
        "-ngld", "--draft-gpu-layers", metavar="N|all")] = None
    main_gpu: Annotated[int | None, _machine(
        "The one GPU to use, counted from 0.", "--main-gpu", metavar="N")] = None
    tensor_split: Annotated[str | None, _machine(
        "Share of each GPU, as 3,1.", "--tensor-split", metavar="A,B,…")] = None
    device: Annotated[str | None, _machine(
        "Device for the target.", "--device", metavar="NAME")] = None
    draft_device: Annotated[str | None, _machine(
        "Device for the draft.", "--draft-device", metavar="NAME")] = None
    threads: Annotated[int | None, _machine(
        "CPU threads.", "-t", "--threads", metavar="N")] = None
    threads_batch: Annotated[int | None, _machine(
        "CPU threads for prompts and checks of drafts.",
        "-tb", "--threads-batch", metavar="N")] = None
    draft_threads: Annotated[int | None, _machine(
        "CPU threads for the draft.",
        "-td", "--draft-threads", "--threads-draft", metavar="N")] = None
    flash_attn: Annotated[FlashAttention | None, _machine(
        "Flash attention: on, off, auto (where a GPU has layers).",
        "-fa", "--flash-attn", metavar="WHEN")] = None
    cache_type_k: Annotated[CacheType | None, _machine(
        "Number format of the key cache: f32, f16, bf16, q8_0 … q4_0 (f16).",
        "-ctk", "--cache-type-k", metavar="TYPE")] = None
    cache_type_v: Annotated[CacheType | None, _machine(
        "Number format of the value cache, as for keys (f16).",
        "-ctv", "--cache-type-v", metavar="TYPE")] = None
    # fmt: on

    def given(self) -> dict[str, Any]:
        """The options that were typed, by field name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def _panel(item: Field[Any]) -> str:
    option = get_args(item.type)[1]
    return str(option.rich_help_panel)


LOADING = frozenset(f.name for f in fields(ModelFlags) if _panel(f) in ("Model", "Machine")) | {
    "exact"
}
"""The options that models are loaded with."""


def with_model_flags(
    command: Callable[..., None], *, only: Collection[str] | None = None
) -> Callable[..., None]:
    """Give a command that takes `flags: ModelFlags` a Typer option for each field, or for some."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "flags"
    ]
    shared = [
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=item.type
        )
        for item in fields(ModelFlags)
        if only is None or item.name in only
    ]

    @wraps(command)
    def wrapper(**typed: Any) -> None:
        flags = ModelFlags(**{parameter.name: typed.pop(parameter.name) for parameter in shared})
        command(**typed, flags=flags)

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    wrapper.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {}
    return wrapper


OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a command needs to open a decoder and to generate."""

    settings: Settings
    options: ModelOptions
    params: GenerationParams
    system: str = ""
    chat_template: str | None = None

    @property
    def draft_is_required(self) -> bool:
        """Whether a draft that cannot serve is an error: only where it was asked for by flag."""
        return self.settings.entries["draft"].source == "flag"

    @property
    def drafter_is_required(self) -> bool:
        """The same of a drafter, before models are loaded: some commands use none."""
        return self.settings.entries["drafter"].source == "flag"


def resolve(flags: ModelFlags) -> Run:
    """Merge what was typed with environment, config, alias and defaults.

    Raises:
        UsageError: a value or a combination of options that cannot be served.
    """
    given = flags.given()
    beside = {name: given.pop(name, None) for name in _BESIDE_SETTINGS}
    for name in given.keys() & {"gpu_layers", "draft_gpu_layers", "tensor_split"}:
        given[name] = settings.parse(settings.KEYS[name].kind, given[name])
    if "system" in given and beside["system_file"]:
        raise UsageError("--system and --system-file cannot be used together.")
    merged = settings.load(given)
    params = merged.generation_params()
    biases = logit_biases(beside["logit_bias"] or ())
    return Run(
        settings=merged,
        options=merged.model_options(),
        params=replace(
            params,
            sampling=replace(params.sampling, logit_bias=biases),
            predict=_text_of(beside["predict_file"]) or "",
            **_format(beside),
        ),
        system=checked_text(_text_of(beside["system_file"]) or merged["system"] or ""),
        chat_template=_text_of(beside["chat_template"]),
    )


def open_decoder(run: Run, on_progress: OnProgress | None = None) -> "SpeculativeDecoder":
    """Find the files and load the models; what is in `warnings` then is printed too.

    Raises:
        UsageError: a drafter was asked for by flag and given nothing to draft from.
        SpecllamaError: see `hub.resolve.resolve_pair` and `SpeculativeDecoder`.
    """
    from specllama.decoder import SpeculativeDecoder
    from specllama.drafting.needs import WITH_DRAFT_MODEL, check_given
    from specllama.verification import LOSSY_RULES

    pair = _find_pair(run)
    for warning in pair.warnings:
        out.warn(warning)
    if (lossy := LOSSY_RULES.get(run.params.verify)) is not None:
        out.warn(lossy.guarantee)
    names, has_draft = run.params.drafters(), pair.draft is not None
    if run.drafter_is_required:
        is_foreign = pair.report is not None and not pair.report.compatible
        check_given(names, run.options, has_draft=has_draft, is_foreign=is_foreign)
    elif not has_draft and run.params.drafter != "auto" and {*names} & {*WITH_DRAFT_MODEL}:
        out.warn(f"There is no draft model, so {run.params.drafter!r} drafts less or nothing.")
    with ctrl_c_afterwards():
        decoder = SpeculativeDecoder(
            pair.target.name,
            pair.draft.name if pair.draft else None,
            options=run.options,
            strict_draft=run.draft_is_required,
            chat_template=run.chat_template,
            on_progress=on_progress,
        )
    for warning in decoder.warnings:
        out.warn(warning)
    decoder.warnings[:0] = pair.warnings
    return decoder


def _find_pair(run: Run) -> "ResolvedPair":
    """The pair that was asked for; without its draft where that cannot serve and need not."""
    target, draft, offline = (run.settings[name] for name in ("target", "draft", "offline"))
    translate = run.options.translate
    try:
        return find_pair(target, draft, offline=offline, translate=translate)
    except ModelError as error:
        if draft is None or run.draft_is_required:
            raise
        pair = find_pair(target, "none", offline=offline)
        return replace(pair, warnings=(f"Running without a draft model: {error}",))


def find_pair(
    target: str | None, draft: str | None, *, offline: bool, translate: bool = False
) -> "ResolvedPair":
    """The files of a pair; what is missing may be downloaded, if a person says so.

    Raises:
        SpecllamaError: see `hub.resolve.resolve_pair`.
    """
    from specllama.cli.download import pair_or_offer

    # What the download prints is no part of an answer on stdout.
    with redirect_stdout(sys.stderr):
        return pair_or_offer(target, draft, offline=offline, translate=translate)


_FORMATS = ("json_schema", "json_schema_file", "grammar", "grammar_file")
_BESIDE_SETTINGS = ("system_file", "chat_template", "logit_bias", "predict_file", *_FORMATS)


def _format(beside: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer has to follow, as a field of `GenerationParams`.

    Raises:
        UsageError: more than one was given, or a JSON schema cannot be served.
    """
    given = [name for name in _FORMATS if beside[name] is not None]
    if not given:
        return {}
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
        raise UsageError(f"{first} and {second} cannot be used together.")
    (name,) = given
    text = read_text(beside[name]) if name.endswith("_file") else beside[name]
    fields: dict[str, Any] = {name.removesuffix("_file"): text}
    params = GenerationParams(**fields)
    if (schema := params.schema()) is not None:
        from specllama.text.schema import to_gbnf

        to_gbnf(schema)  # what cannot be served is said before models are loaded
    return fields


def logit_biases(texts: Iterable[str]) -> dict[int, float]:
    """`ID+VALUE` and `ID-VALUE`, as llama.cpp writes them, by token id.

    Raises:
        UsageError: a text of another form.
    """
    biases = {}
    for text in texts:
        parts = _BIAS.fullmatch(text)
        if parts is None:
            raise UsageError(
                f"Cannot read the logit bias {text!r}.", "Write it as 15043+1.5 or 15043-inf."
            )
        biases[int(parts["id"])] = float(parts["bias"])
    return biases


_BIAS = re.compile(r"(?P<id>\d+)(?P<bias>[+-](\d+(\.\d*)?|\.\d+|inf))")


def _text_of(file: Path | None) -> str | None:
    return read_text(file) if file else None


def read_text(file: Path) -> str:
    """The text of a UTF-8 file people named.

    Raises:
        UsageError: it cannot be read, or it is not UTF-8; says which and why.
    """
    try:
        return decode_text(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from error


def checked_text(text: str) -> str:
    """`text`, which arguments, keys and JSON may have given bytes that are no text.

    Raises:
        UsageError: it cannot be written as UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The text is not valid Unicode (at character {error.start + 1}).",
            "Type or paste it again as UTF-8.",
        ) from error
    return text


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 (with or without a byte order mark) to text, line ends as "\\n".

    Raises:
        UsageError: not UTF-8; says where.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}).",
            "Convert it first, for example with iconv.",
        ) from error
    return text.replace("\r\n", "\n")
