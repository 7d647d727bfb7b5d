"""From options, environment and config to a loaded pair."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.cli.main import run
from specllama.cli.output import out
from specllama.errors import ModelNotFound, PairMismatch
from specllama.hub.resolve import OFF, ResolvedModel, ResolvedPair

from .fakes import FakeDecoder, FakeText, Reply


@dataclass
class Opened(FakeDecoder):
    """A decoder that notes how it was opened."""

    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    decoder = Opened([Reply(tokens=("ok",))])

    def open_decoder(*arguments: Any, **options: Any) -> Opened:
        decoder.arguments, decoder.options = arguments, options
        return decoder

    # A module in its place, so that these tests need no llama.cpp.
    module = SimpleNamespace(SpeculativeDecoder=open_decoder)
    monkeypatch.setitem(sys.modules, "specllama.decoder", module)
    monkeypatch.setattr("specllama.hub.resolve.resolve_pair", _resolve_pair)
    monkeypatch.setattr("sys.stdin", FakeText(tty=True))
    return decoder


def _resolve_pair(
    target: str | None, draft: str | None, *, offline: bool, translate: bool
) -> ResolvedPair:
    if target == "missing":
        raise ModelNotFound("No model named 'missing'.")
    if draft == "bad" and not translate:
        raise PairMismatch("Draft cannot serve this target: token 5 differs.")
    if draft == OFF:
        return ResolvedPair(_model(target or "builtin"))
    report: Any = SimpleNamespace(compatible=draft != "bad")
    return ResolvedPair(_model(target or "builtin"), _model(draft or "builtin-draft"), report)


def _model(name: str) -> ResolvedModel:
    return ResolvedModel(Path(f"{name}.gguf"), name, None)  # type: ignore[arg-type]


def test_without_options_the_built_in_pair_is_opened(opened: Opened) -> None:
    assert run(["generate", "Hi"]) == 0
    assert opened.arguments == ("builtin", "builtin-draft")
    assert opened.options["strict_draft"] is False


@pytest.mark.parametrize("option", ["-m", "--target", "--model"])
@pytest.mark.parametrize("draft_option", ["-md", "--draft", "--model-draft", "--draft-model"])
def test_all_names_of_the_model_options(opened: Opened, option: str, draft_option: str) -> None:
    assert run(["generate", "Hi", option, "big", draft_option, "small"]) == 0
    assert opened.arguments == ("big", "small")
    assert opened.options["strict_draft"] is True


def test_none_is_no_draft(opened: Opened) -> None:
    assert run(["generate", "Hi", "-md", "none"]) == 0
    assert opened.arguments == ("builtin", None)


def test_a_draft_asked_for_by_option_must_fit(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "Hi", "-md", "bad"]) == 1
    assert "Error: Draft cannot serve this target" in capsys.readouterr().err
    assert opened.arguments == ()
    assert run(["generate", "Hi", "-md", "bad", "--translate"]) == 0
    assert opened.arguments == ("builtin", "bad")
    assert opened.options["options"].translate


def test_a_draft_from_the_environment_that_does_not_fit_is_a_warning(
    opened: Opened, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_DRAFT", "bad")
    assert run(["generate", "Hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "ok\n"
    assert captured.err.startswith(
        "Warning: Running without a draft model: Draft cannot serve this target"
    )
    assert opened.arguments == ("builtin", None)
    assert len(opened.warnings) == 1


def test_a_missing_target_is_an_error_whoever_named_the_draft(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_DRAFT", "bad")
    assert run(["generate", "Hi", "-m", "missing"]) == 1
    assert opened.arguments == ()


def test_the_decoders_warnings_are_printed(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    opened.warnings = ["The draft was left out."]
    run(["generate", "Hi"])
    assert capsys.readouterr().err == "Warning: The draft was left out.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-md", "none", "--drafter", "model"], "The drafter 'model' has nothing to draft from."),
        (["-md", "none", "--drafter", "suffix+tree"], "The drafter 'tree' has nothing"),
        (["--drafter", "ngram"], "The drafter 'ngram' has nothing to draft from."),
        (["-md", "bad", "--translate", "--drafter", "tree"], "needs a draft with the target's"),
    ],
)
def test_a_drafter_with_nothing_to_draft_from_is_refused_before_models_are_loaded(
    opened: Opened, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["generate", "Hi", *options]) == 2
    assert message in capsys.readouterr().err
    assert opened.arguments == ()


@pytest.mark.parametrize(
    "options", [["-md", "none", "--drafter", "suffix"], ["-md", "none"], ["--drafter", "tree"]]
)
def test_other_drafters_are_not(opened: Opened, options: list[str]) -> None:
    assert run(["generate", "Hi", *options]) == 0


@pytest.mark.parametrize("name", ["exact", "store", "translate"])
def test_a_flag_takes_back_what_is_configured(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"SPECLLAMA_{name.upper()}", "on")
    for more, on in ([], True), ([f"--no-{name}"], False):
        run(["generate", "Hi", *more])
        assert getattr(opened.options["options"], name) is on


def test_a_lossy_rule_is_told(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    run(["generate", "Hi", "--verify", "typical", "--lossy"])
    assert capsys.readouterr().err.startswith("Warning: Not exact: typical acceptance")


def test_a_configured_drafter_without_a_model_is_a_warning(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECLLAMA_DRAFTER", "suffix+tree")
    assert run(["generate", "Hi", "-md", "none"]) == 0
    assert opened.arguments == ("builtin", None)
    warning = "There is no draft model, so 'suffix+tree' drafts less or nothing."
    assert warning in capsys.readouterr().err


def test_what_a_download_prints_stays_out_of_the_answer(
    opened: Opened, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pair_or_offer(target: str | None, draft: str | None, **how: bool) -> ResolvedPair:
        out.line("/cache/model.gguf")
        return _resolve_pair(target, draft, **how)

    monkeypatch.setattr("specllama.cli.download.pair_or_offer", pair_or_offer)
    run(["generate", "Hi"])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("ok\n", "/cache/model.gguf\n")


def test_options_win_over_environment_over_config(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("specllama.toml").write_text("ctx_size = 1024\ntemp = 0.1\ntop_k = 1\n")
    monkeypatch.setenv("SPECLLAMA_TEMP", "0.2")
    monkeypatch.setenv("SPECLLAMA_TOP_K", "2")
    run(["generate", "Hi", "--temp", "0.3"])
    sampling = opened.params[0].sampling
    assert (sampling.temperature, sampling.top_k) == (0.3, 2)
    assert opened.options["options"].n_ctx == 1024


def test_a_chat_template_comes_from_its_file(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    run(["generate", "Hi", "--chat-template", str(tmp_path / "template.jinja")])
    assert opened.options["chat_template"] == "{{ messages }}"


def test_generate_and_chat_take_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    helps = []
    for command in ("generate", "chat"):
        assert run([command, "--help"]) == 0
        text = capsys.readouterr().out
        helps.append(text[text.index("-m, --target") : text.index("-q, --quiet")])
    assert helps[0] == helps[1]


@pytest.mark.parametrize("text", ["all", "auto"])
def test_all_layers(opened: Opened, text: str) -> None:
    assert run(["generate", "Hi", "-ngl", text, "-ngld", text]) == 0
    options = opened.options["options"]
    assert (options.gpu_layers, options.draft_gpu_layers) == (-1, -1)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("-b", "1", "--batch-size: n_batch must be at least 2, not 1."),
        ("-t", "100000", "--threads: threads must be at most 512, not 100000."),
        ("-tb", "513", "--threads-batch: threads_batch must be at most 512, not 513."),
        ("-c", "4294967552", "--ctx-size: n_ctx must be at most 2147483392, not 4294967552."),
    ],
)
def test_extremes_are_refused(
    opened: Opened, capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    assert run(["generate", "Hi", option, value]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not opened.arguments


SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
GBNF = 'root ::= "yes" | "no"\n'


@pytest.mark.parametrize(
    ("option", "field", "text"),
    [
        ("-j", "json_schema", SCHEMA),
        ("--json-schema", "json_schema", SCHEMA),
        ("--grammar", "grammar", GBNF),
    ],
)
def test_what_the_answer_has_to_follow(opened: Opened, option: str, field: str, text: str) -> None:
    assert run(["generate", "Hi", option, text]) == 0
    assert getattr(opened.params[0], field) == text


@pytest.mark.parametrize(
    ("option", "field", "text"),
    [
        ("-jf", "json_schema", SCHEMA),
        ("--json-schema-file", "json_schema", SCHEMA),
        ("--grammar-file", "grammar", GBNF),
    ],
)
def test_it_may_be_in_a_file(
    opened: Opened, tmp_path: Path, option: str, field: str, text: str
) -> None:
    file = tmp_path / "format"
    file.write_text(text)
    assert run(["generate", "Hi", option, str(file)]) == 0
    assert getattr(opened.params[0], field) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-j", "{", "Hi"], "not JSON"),
        (["-j", "[]", "Hi"], "A JSON schema is an object"),
        (["-j", '{"not": {}}', "Hi"], "'not' is not supported"),
        (["-jf", "gone.json", "Hi"], "Cannot read gone.json"),
        (["--grammar", " ", "Hi"], "grammar is empty"),
        (["-j", "{}", "--grammar-file", "x", "Hi"], "cannot be used together"),
    ],
)
def test_a_format_that_cannot_be_served_is_a_usage_error(
    opened: Opened, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["generate", *options]) == 2
    assert message in capsys.readouterr().err
    assert not opened.arguments, "models were loaded first"
