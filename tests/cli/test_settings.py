"""Which source wins, and what is said of wrong ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.cli import settings
from specllama.errors import UsageError
from specllama.hub import aliases
from specllama.options import GenerationParams, ModelOptions

from .conftest import Result

Cli = Callable[..., Result]


def write_config(home: Path, text: str) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_options() -> None:
    merged = settings.load()
    assert merged.model_options() == ModelOptions()
    assert merged.generation_params() == GenerationParams()
    assert {setting.source for setting in merged.entries.values()} == {"default"}


def test_each_source_beats_the_next(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aliases.save("pair", aliases.Alias("t.gguf", "alias.gguf", draft_max=1))

    def draft_max(**flags: object) -> tuple[int, str]:
        setting = settings.load({"target": "pair"} | flags).entries["draft_max"]
        return setting.value, setting.source

    assert draft_max() == (1, "alias pair")
    config = write_config(own_home, "draft-max = 2")
    assert draft_max() == (2, str(config))
    Path("specllama.toml").write_text("draft_max = 3")
    assert draft_max() == (3, "specllama.toml")
    monkeypatch.setenv("SPECLLAMA_DRAFT_MAX", "4")
    assert draft_max() == (4, "env SPECLLAMA_DRAFT_MAX")
    assert draft_max(draft_max=5) == (5, "flag")


def test_an_alias_brings_its_target_and_draft() -> None:
    aliases.save("pair", aliases.Alias("t.gguf", "d.gguf"))

    merged = settings.load({"target": "pair"})
    assert (merged["target"], merged["draft"]) == ("t.gguf", "d.gguf")
    assert settings.load({"target": "pair", "draft": "none"})["draft"] == "none"


def test_flags_may_go_by_the_name_of_the_option_field() -> None:
    merged = settings.load({"temperature": 0.5, "n_ctx": 512})
    assert merged.generation_params().sampling.temperature == 0.5
    assert merged.model_options().n_ctx == 512


def test_llama_cpp_spellings() -> None:
    merged = settings.load({"seed": -1, "max_tokens": -1, "gpu_layers": "all"})
    assert merged.generation_params().seed is None
    assert merged.generation_params().max_tokens is None
    assert merged.model_options().gpu_layers == -1


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("SPECLLAMA_TEMP", "0", "temp", 0.0),
        ("SPECLLAMA_OFFLINE", "1", "offline", True),
        ("SPECLLAMA_ADAPTIVE", "false", "adaptive", False),
        ("SPECLLAMA_STORE", "on", "store", True),
        ("SPECLLAMA_STORE", "0", "store", False),
        ("SPECLLAMA_TENSOR_SPLIT", "3,1", "tensor_split", (3.0, 1.0)),
        ("SPECLLAMA_STOP", "END", "stop", ("END",)),
        ("SPECLLAMA_TARGET", "7", "target", "7"),
        ("SPECLLAMA_GPU_LAYERS", "auto", "gpu_layers", -1),
        ("SPECLLAMA_DRAFT_GPU_LAYERS", "all", "draft_gpu_layers", -1),
        ("SPECLLAMA_GPU_LAYERS", "12", "gpu_layers", 12),
    ],
)
def test_environment_variables(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, key: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert settings.load()[key] == value


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("draft_mx = 3", "Unknown key 'draft_mx' in {path}. Did you mean 'draft_max'?"),
        ('top_k = "many"', "top_k ({path}) must be a whole number, not 'many'."),
        ("top_k = 1.5", "top_k ({path}) must be a whole number, not 1.5."),
        ("adaptive = 1", "adaptive ({path}) must be true or false, not 1."),
        ("temp = true", "temp ({path}) must be a number, not True."),
        ("stop = 'x'", "stop ({path}) must be a list of texts, not 'x'."),
        ("ctx_size = -1", "ctx_size ({path}): n_ctx must be at least 0, not -1."),
        (
            "gpu_layers = 'some'",
            "gpu_layers ({path}) must be a whole number or \"all\", not 'some'.",
        ),
    ],
)
def test_a_wrong_config_names_file_and_key(own_home: Path, config: str, message: str) -> None:
    path = write_config(own_home, config)
    with pytest.raises(UsageError) as caught:
        settings.load()
    assert str(caught.value) == message.format(path=path)


def test_config_that_is_not_toml(own_home: Path) -> None:
    path = write_config(own_home, "temp = ")
    with pytest.raises(UsageError, match=f"{path} is not valid TOML"):
        settings.load()


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_TOP_K", "many")
    with pytest.raises(UsageError, match=r"^top_k \(env SPECLLAMA_TOP_K\) must be a whole number"):
        settings.load()


def test_a_variable_that_nothing_reads_is_warned_of_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings._warn_of.cache_clear()
    for name in ("SPECLLAMA_TMEP", "SPECLLAMA_JSON_SCHEMA"):
        monkeypatch.setenv(name, "0")
    for name in ("SPECLLAMA_API_KEY", "SPECLLAMA_NO_HISTORY", "SPECLLAMA_TEMP"):
        monkeypatch.setenv(name, "1")
    assert cli("config", "show").err == (
        "Warning: SPECLLAMA_JSON_SCHEMA is no setting. `specllama config show` lists all.\n"
        "Warning: SPECLLAMA_TMEP is no setting. Did you mean SPECLLAMA_TEMP?\n"
    )
    assert cli("config", "show").err == ""


def test_every_variable_the_package_reads_is_known() -> None:
    package = Path(settings.__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'"(SPECLLAMA_[A-Z_]+[A-Z])"', text)}
    assert read <= set(settings._OTHER_VARIABLES)


def test_config_show(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_TEMP", "0.2")
    result = cli("config", "show")
    assert result.code == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in result.out.splitlines()}
    assert rows["temp"] == ["0.2", "env SPECLLAMA_TEMP"]
    assert rows["draft_max"] == ["48", "default"]
    assert set(rows) == {"KEY", *settings.KEYS}
    data = json.loads(cli("config", "show", "--json").out)
    assert data["temp"] == {"value": 0.2, "source": "env SPECLLAMA_TEMP"}


def test_config_path(cli: Cli, own_home: Path) -> None:
    assert cli("config", "path") == Result(0, f"{own_home / 'config.toml'}\n", "")
    assert json.loads(cli("config", "path", "--json").out)["user_exists"] is False


def test_a_broken_config_is_one_sentence(cli: Cli, own_home: Path) -> None:
    path = write_config(own_home, "tmp = 1")
    result = cli("config", "show")
    assert result == Result(2, "", f"Error: Unknown key 'tmp' in {path}.\nDid you mean 'temp'?\n")


def test_a_config_that_a_windows_editor_saved(own_home: Path) -> None:
    (own_home / "config.toml").write_bytes(b"\xef\xbb\xbftemp = 0\r\n")
    assert settings.load()["temp"] == 0.0


def test_a_config_that_is_nested_too_deeply(own_home: Path) -> None:
    path = write_config(own_home, f"stop = {'[' * 5000}{']' * 5000}")
    with pytest.raises(UsageError, match=f"{path} is not valid TOML"):
        settings.load()


@pytest.mark.parametrize("name", ["TEMP", "TENSOR_SPLIT"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_beyond_all_numbers(monkeypatch: pytest.MonkeyPatch, name: str, sign: str) -> None:
    monkeypatch.setenv(f"SPECLLAMA_{name}", f"{sign}1{'0' * 400}")
    with pytest.raises(UsageError, match=rf"\(env SPECLLAMA_{name}\): .* at least 0.*, not -?inf"):
        settings.load()
