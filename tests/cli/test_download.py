"""`specllama download` against a stand-in hub."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specllama.cli.download import pair_or_offer
from specllama.hub import aliases, cache, catalogue
from specllama.hub.resolve import NotDownloaded
from tests.hub.ggufs import write_gguf
from tests.hub.standin import StandIn

from .conftest import Result

Cli = Callable[..., Result]
REPO = "user/model-GGUF"


@pytest.fixture
def stocked(hub: StandIn, tmp_path: Path) -> StandIn:
    """A repository with three quantisations, one of them in two parts."""
    data = write_gguf(tmp_path / "source.gguf").read_bytes()
    hub.repos[REPO] = {
        "m-Q4_K_M.gguf": data,
        "m-Q6_K.gguf": data + b"6",
        "m-Q8_0-00001-of-00002.gguf": data + b"81",
        "m-Q8_0-00002-of-00002.gguf": data + b"82",
        "README.md": b"read me",
    }
    return hub


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> Terminal:
    """stdin and stderr are terminals, the person types `answer`; returns what was shown."""
    shown = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def in_cache(name: str) -> str:
    (path,) = cache.folder().rglob(f"snapshots/*/{name}")
    return str(path)


def test_the_default_is_q4_k_m_and_the_path_is_all_of_stdout(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", REPO)

    assert result == Result(0, f"{in_cache('m-Q4_K_M.gguf')}\n", "")
    assert stocked.downloads() == 1


def test_a_quantisation_in_any_case(cli: Cli, stocked: StandIn) -> None:
    assert cli("download", f"{REPO}:q6_k").out == f"{in_cache('m-Q6_K.gguf')}\n"


def test_all_parts_of_a_split_model(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", f"{REPO}:Q8_0")

    assert result.out.splitlines() == [
        in_cache("m-Q8_0-00001-of-00002.gguf"),
        in_cache("m-Q8_0-00002-of-00002.gguf"),
    ]


def test_an_unknown_quantisation(cli: Cli, stocked: StandIn) -> None:
    assert cli("download", f"{REPO}:Q5_K_S") == Result(
        2, "", f"Error: No Q5_K_S in {REPO}. It has: Q4_K_M, Q6_K, Q8_0.\n"
    )


def test_no_default_and_nobody_to_ask(cli: Cli, stocked: StandIn) -> None:
    del stocked.repos[REPO]["m-Q4_K_M.gguf"]
    result = cli("download", REPO)

    assert result.code == 2
    assert f"{REPO} has no Q4_K_M. It has: Q6_K, Q8_0." in result.err
    assert result.out == ""


def test_no_default_and_somebody_to_ask(
    cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.cli.main import run

    del stocked.repos[REPO]["m-Q4_K_M.gguf"]
    shown = on_a_terminal(monkeypatch, "1\n")

    assert run(["download", REPO]) == 0
    assert "Which one?" in shown.getvalue()
    assert in_cache("m-Q6_K.gguf")


def test_two_files_of_one_quantisation_are_told_apart(
    cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.cli.main import run

    data = stocked.repos[REPO]["m-Q6_K.gguf"]
    stocked.repos["user/two"] = {"a-Q6_K.gguf": data, "b-Q6_K.gguf": data + b"b"}
    shown = on_a_terminal(monkeypatch, "2\n")

    assert run(["download", "user/two"]) == 0
    assert "1  a-Q6_K.gguf" in shown.getvalue()
    assert in_cache("b-Q6_K.gguf")
    result = cli("download", "user/two:a-Q6_K.gguf")
    assert result.out == f"{in_cache('a-Q6_K.gguf')}\n"
    assert cli("show", "user/two:a-Q6_K.gguf").code == 0


def test_files_by_name_and_by_glob(cli: Cli, stocked: StandIn) -> None:
    assert cli("download", REPO, "README.md").out == f"{in_cache('README.md')}\n"

    result = cli("download", REPO, "--include", "*.gguf", "--exclude", "*Q8*")
    assert result.out.splitlines() == [in_cache("m-Q4_K_M.gguf"), in_cache("m-Q6_K.gguf")]


def test_a_file_that_is_not_there(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", REPO, "other.gguf")
    assert result.code == 2
    assert result.err.startswith(f"Error: No file other.gguf in {REPO}.")


def test_a_file_with_brackets_in_its_name(cli: Cli, stocked: StandIn) -> None:
    stocked.repos[REPO]["m[1].txt"] = b"brackets"
    assert cli("download", REPO, "m[1].txt").out == f"{in_cache('m[[]1].txt')}\n"


def test_local_dir(cli: Cli, stocked: StandIn, tmp_path: Path) -> None:
    result = cli("download", REPO, "--local-dir", str(tmp_path / "here"))
    assert result.out == f"{tmp_path / 'here' / 'm-Q4_K_M.gguf'}\n"
    assert not cache.folder().exists()


def test_files_are_chosen_of_the_target_alone(cli: Cli, stocked: StandIn) -> None:
    """A draft is told by its own name."""
    draft = "user/draft-GGUF"
    stocked.repos[draft] = {"d-Q4_K_M.gguf": stocked.repos[REPO]["m-Q4_K_M.gguf"] + b"d"}
    for files in (["m-Q6_K.gguf"], ["--include", "*Q6*"]):
        result = cli("download", REPO, *files, "--draft", draft)
        assert result.out.splitlines() == [in_cache("m-Q6_K.gguf"), in_cache("d-Q4_K_M.gguf")]


def test_a_draft_that_is_not_there_is_told_before_anything_is_fetched(
    cli: Cli, stocked: StandIn
) -> None:
    assert cli("download", REPO, "--draft", "user/none").code == 1
    assert stocked.downloads() == 0


def test_a_pair_has_to_fit_before_its_target_is_fetched(
    cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = "user/draft-GGUF"
    data = stocked.repos[REPO]["m-Q4_K_M.gguf"]
    stocked.repos[draft] = {"d-Q4_K_M.gguf": data}
    room = SimpleNamespace(free=2 * len(data) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    result = cli("download", REPO, "--draft", draft)
    assert (result.code, stocked.downloads()) == (1, 0)
    assert "Free some space" in result.err
    room.free += 1
    assert cli("download", REPO, "--draft", draft).code == 0


def test_no_file_of_a_folder_is_replaced_unasked(
    cli: Cli, stocked: StandIn, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "m-Q4_K_M.gguf").write_bytes(b"mine")
    result = cli("download", REPO, "--local-dir", str(here))
    assert (result.code, result.out) == (2, "")
    assert "is there, and it is not the file of" in result.err
    assert (here / "m-Q4_K_M.gguf").read_bytes() == b"mine"
    assert cli("download", REPO, "--local-dir", str(here), "--force").code == 0
    assert (here / "m-Q4_K_M.gguf").read_bytes() == stocked.repos[REPO]["m-Q4_K_M.gguf"]


def test_a_draft_never_replaces_its_target(cli: Cli, stocked: StandIn, tmp_path: Path) -> None:
    """Both may be called ggml-model-Q4_K_M.gguf."""
    same = "user/same-GGUF"
    stocked.repos[same] = {"m-Q4_K_M.gguf": stocked.repos[REPO]["m-Q4_K_M.gguf"]}
    result = cli("download", REPO, "--local-dir", str(tmp_path / "here"), "--draft", same)
    assert result.code == 2
    assert "Both models have a file m-Q4_K_M.gguf" in result.err
    assert stocked.downloads() == 0
    assert cli("download", REPO, "--draft", same).code == 0, "the cache keeps them apart"


def test_force(cli: Cli, stocked: StandIn) -> None:
    for _ in range(2):
        cli("download", REPO)
    assert stocked.downloads() == 1
    cli("download", REPO, "--force")
    assert stocked.downloads() == 2


def test_list(cli: Cli, stocked: StandIn) -> None:
    cli("download", f"{REPO}:Q6_K")
    result = cli("download", REPO, "--list")

    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["QUANT", "SIZE", "HERE", "FILE"]
    assert [(line[0], line[3], line[4]) for line in lines[1:]] == [
        ("Q4_K_M", "no", "m-Q4_K_M.gguf"),
        ("Q6_K", "yes", "m-Q6_K.gguf"),
        ("Q8_0", "no", "m-Q8_0-00001-of-00002.gguf"),
    ]
    data = json.loads(cli("download", REPO, "--list", "--json").out)
    assert [row["quant"] for row in data] == ["Q4_K_M", "Q6_K", "Q8_0"]
    assert data[2]["bytes"] == data[0]["bytes"] * 2 + 4
    assert stocked.downloads() == 1


def test_dry_run(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", f"{REPO}:Q8_0", "--dry-run")

    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
    ]
    assert "to fetch" in result.err
    assert stocked.downloads() == 0
    data = json.loads(cli("download", f"{REPO}:Q8_0", "--dry-run", "--json").out)
    (model,) = data["models"]
    assert model["to_fetch"] == sum(file["bytes"] for file in model["files"])
    assert model["fits"] is True


def test_json(cli: Cli, stocked: StandIn) -> None:
    data = json.loads(cli("download", REPO, "--json").out)
    assert data == {
        "models": [
            {
                "name": REPO,
                "paths": [in_cache("m-Q4_K_M.gguf")],
                "bytes": len(stocked.repos[REPO]["m-Q4_K_M.gguf"]),
            }
        ]
    }


def test_gated(cli: Cli, stocked: StandIn) -> None:
    stocked.gated.add(REPO)
    assert cli("download", REPO) == Result(
        1,
        "",
        f"Error: {REPO} needs approval.\n"
        f"Accept its terms at https://huggingface.co/{REPO}, then: hf auth login\n",
    )
    assert cli("download", REPO, "--token", stocked.token).code == 0


@pytest.mark.parametrize(
    ("token", "variable"), [("“hf_secret”", False), ("“hf_secret”", True), ("hf_sec\nret", False)]
)
def test_a_token_that_cannot_be_one(
    cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch, token: str, variable: bool
) -> None:
    """It is a secret all the same."""
    if variable:
        monkeypatch.setenv("HF_TOKEN", token)
    result = cli("download", REPO, *([] if variable else ["--token", token]))
    assert (result.code, "hf_sec" in result.err) == (2, False)
    assert "Correct --token or HF_TOKEN." in result.err


def test_a_token_with_the_line_break_of_its_file(cli: Cli, stocked: StandIn) -> None:
    stocked.gated.add(REPO)
    assert cli("download", REPO, "--token", f"{stocked.token}\n").code == 0


def test_one_part_of_a_model_is_no_model(cli: Cli, stocked: StandIn) -> None:
    cli("download", REPO, "m-Q8_0-00001-of-00002.gguf")
    assert "Q8_0" not in cli("list").out
    result = cli("download", f"{REPO}:Q8_0", "--offline")
    assert (result.code, result.out) == (1, "")


def test_not_found(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", "user/nothing")
    assert result.code == 1
    assert "user/nothing not found, or it is private and the token cannot see it." in result.err


def test_disk_full(cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    result = cli("download", REPO)
    assert result.code == 1
    assert result.err.startswith("Error: Need ")
    assert stocked.downloads() == 0
    assert "it does not fit" in cli("download", REPO, "--dry-run").err


def test_offline(cli: Cli, stocked: StandIn) -> None:
    assert cli("download", REPO, "--offline") == Result(
        1, "", f"Error: Offline, and {REPO} is not in the cache.\nGo online to download it.\n"
    )
    online = cli("download", REPO)
    assert cli("download", REPO, "--offline").out == online.out


@pytest.mark.parametrize(
    "more",
    [
        ["m-Q6_K.gguf"],
        ["--include", "*.gguf"],
        ["--exclude", "*Q8*"],
        ["--revision", "other"],
        ["--local-dir", "here"],
        ["--force"],
    ],
)
def test_offline_takes_what_is_there_as_it_is(cli: Cli, stocked: StandIn, more: list[str]) -> None:
    """It must not pass another model's path for the file that was named."""
    cli("download", REPO)
    result = cli("download", REPO, *more, "--offline")
    assert (result.code, result.out) == (2, "")
    assert f"Write {REPO}:QUANT or {REPO}:FILE.gguf and no more." in result.err
    assert cli("download", f"{REPO}:m-Q4_K_M.gguf", "--offline").code == 0


def test_offline_as_hugging_face_has_it(
    cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = cli("download", REPO)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    stocked.broken = True
    assert cli("download", REPO) == online
    assert cli("download", REPO, "--list").code == 0


def test_list_offline_asks_the_cache_alone(cli: Cli, stocked: StandIn) -> None:
    cli("download", f"{REPO}:Q6_K")
    stocked.broken = True
    result = cli("download", REPO, "--list", "--offline")
    lines = [line.split() for line in result.out.splitlines()]
    assert [(line[0], line[3], line[4]) for line in lines[1:]] == [("Q6_K", "yes", "m-Q6_K.gguf")]
    assert result.code == 0
    assert cli("download", "user/other", "--list", "--offline").err.startswith(
        "Error: Offline, and user/other is not in the cache."
    )


def test_offline_by_setting(cli: Cli, stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_OFFLINE", "1")
    assert cli("download", REPO).err.startswith("Error: Offline, and ")
    assert stocked.downloads() == 0


def test_no_network_at_all(cli: Cli) -> None:
    result = cli("download", REPO)
    assert result.code == 1
    assert "Cannot reach 127.0.0.1:9" in result.err


def test_a_name_that_is_nothing(cli: Cli) -> None:
    assert "'qwen' is not a repository." in cli("download", "qwen").err
    assert cli("download", "qwen").code == 2
    for name in ("none", ""):
        for options in ([], ["--list"]):
            result = cli("download", name, *options)
            assert result.code == 2
            assert f"{name!r} is not a repository." in result.err


def test_a_pair_is_fetched_and_checked(cli: Cli, stocked: StandIn) -> None:
    result = cli("download", REPO, "--draft", f"{REPO}:Q6_K")

    assert result.code == 0
    assert result.out.splitlines() == [in_cache("m-Q4_K_M.gguf"), in_cache("m-Q6_K.gguf")]
    assert "The draft can serve this target." in result.err
    assert f"specllama alias set NAME {REPO} --draft {REPO}:Q6_K" in result.err


def test_a_pair_can_be_named_at_once(stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from specllama.cli.main import run

    on_a_terminal(monkeypatch, "mine\n")
    assert run(["download", REPO, "--draft", f"{REPO}:Q6_K"]) == 0
    assert aliases.load() == {"mine": aliases.Alias(REPO, f"{REPO}:Q6_K")}


def test_a_pair_that_does_not_fit(cli: Cli, stocked: StandIn, tmp_path: Path) -> None:
    stranger = write_gguf(tmp_path / "stranger.gguf", tokens=["x"] * 200)
    stocked.repos["other/draft"] = {"d-Q4_K_M.gguf": stranger.read_bytes()}

    result = cli("download", REPO, "--draft", "other/draft")

    assert result.code == 1
    assert 'token 0 is "<s>" in the target and "x" in the draft' in result.err
    assert len(result.out.splitlines()) == 2


def test_a_catalogue_name_fetches_both(cli: Cli, hub: StandIn, tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "source.gguf").read_bytes()
    pair = catalogue.pairs()["qwen2.5-14b"]
    for model in (pair.target, pair.draft):
        hub.repos[model.model.split(":")[0]] = {model.file: data}

    result = cli("download", "qwen2.5-14b")

    assert result.out.splitlines() == [in_cache(pair.target.file), in_cache(pair.draft.file)]
    assert "specllama chat -m qwen2.5-14b" in result.err
    assert json.loads(cli("list", "--catalogue", "--json").out)[4]["here"] is True


def test_what_is_missing_is_offered_on_a_terminal(
    stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = on_a_terminal(monkeypatch, "y\n")

    pair = pair_or_offer(f"{REPO}:Q4_K_M", "none")

    assert str(pair.target.path) == in_cache("m-Q4_K_M.gguf")
    assert f"{REPO}:Q4_K_M is not in the cache. Download it? [y/N]" in shown.getvalue()


def test_what_is_missing_is_an_error_elsewhere(stocked: StandIn) -> None:
    with pytest.raises(NotDownloaded, match=f"Run: specllama download {REPO}:Q4_K_M"):
        pair_or_offer(f"{REPO}:Q4_K_M", "none")
    assert stocked.downloads() == 0


def test_a_refused_offer_is_the_error(stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch, "n\n")
    with pytest.raises(NotDownloaded):
        pair_or_offer(f"{REPO}:Q4_K_M", "none")
