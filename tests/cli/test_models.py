"""`list`, `rm`, `show`, `check`, `alias` and `doctor`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.hub import aliases, builtin, cache
from tests.hub.ggufs import write_gguf
from tests.hub.standin import COMMIT

from .conftest import Result

Cli = Callable[..., Result]


def put_into_cache(name: str, repo: str = "user/repo") -> Path:
    folder = cache.repo_folder(repo)
    blob = write_gguf(folder / "blobs" / name)
    link = folder / "snapshots" / COMMIT / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return link


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "work" / "tiny.gguf", bos=0, eos=1)


def test_list_shows_the_cache_and_the_built_in_pair(cli: Cli) -> None:
    put_into_cache("m-Q4_K_M.gguf")
    result = cli("list")

    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0] == ["NAME", "SIZE", "MODIFIED", "SOURCE"]
    assert rows[1][0] == builtin.TARGET
    assert rows[-1][0] == "user/repo:Q4_K_M"
    assert rows[-1][-1] == "cache"
    assert result.err == ""


def test_list_quiet_is_names_only(cli: Cli) -> None:
    put_into_cache("m-Q4_K_M.gguf")
    names = cli("list", "-q").out.splitlines()
    assert names[-1] == "user/repo:Q4_K_M"
    assert all(" " not in name for name in names)


def test_list_json(cli: Cli) -> None:
    path = put_into_cache("m-Q4_K_M.gguf")
    data = json.loads(cli("list", "--json").out)
    assert data[-1] == {
        "name": "user/repo:Q4_K_M",
        "path": str(path),
        "bytes": path.stat().st_size,
        "modified": path.stat().st_mtime,
        "source": "cache",
    }


def test_list_with_nothing_downloaded_says_what_to_do(cli: Cli) -> None:
    assert "specllama list --catalogue" in cli("list").err


def test_list_catalogue(cli: Cli) -> None:
    result = cli("list", "--catalogue")
    names = [line.split()[0] for line in result.out.splitlines()[1:]]
    assert builtin.TARGET in names
    assert "llama-3.3-70b" in names
    assert len(names) >= 8


def test_rm_asks_nobody_in_a_pipe(cli: Cli) -> None:
    path = put_into_cache("m-Q4_K_M.gguf")
    result = cli("rm", "user/repo:Q4_K_M")
    assert result.code == 2
    assert "Add --yes." in result.err
    assert path.exists()


def test_rm_dry_run_and_for_good(cli: Cli) -> None:
    path = put_into_cache("m-Q4_K_M.gguf")
    other = put_into_cache("m-Q8_0.gguf")

    result = cli("rm", "user/repo:q4_k_m", "--dry-run")
    assert (result.code, result.out) == (0, "")
    assert "user/repo:Q4_K_M" in result.err
    assert path.exists()

    assert cli("rm", "user/repo:q4_k_m", "-y").code == 0
    assert not path.exists()
    assert other.exists()


def test_rm_of_a_repository_takes_all_of_it(cli: Cli) -> None:
    put_into_cache("m-Q4_K_M.gguf")
    put_into_cache("m-Q8_0.gguf")
    data = json.loads(cli("rm", "user/repo", "-y", "--json").out)
    assert data["deleted"] == ["user/repo:Q4_K_M", "user/repo:Q8_0"]
    assert cache.models() == []


def test_rm_of_what_is_not_there(cli: Cli) -> None:
    assert cli("rm", "user/repo", "-y") == Result(
        2, "", "Error: user/repo is not in the cache.\n`specllama list` shows what is.\n"
    )
    assert "came with a package" in cli("rm", builtin.TARGET, "-y").err


def test_rm_of_one_of_two_files_of_a_quantisation(cli: Cli) -> None:
    paths = [put_into_cache(f"{name}-Q4_K_M.gguf") for name in "ab"]
    result = cli("rm", "user/repo:Q4_K_M", "-y")
    assert result.code == 2
    assert "Name one: user/repo:a-Q4_K_M.gguf" in result.err

    assert cli("rm", "hf://user/repo:A-Q4_K_M.gguf", "-y").code == 0
    assert [path.exists() for path in paths] == [False, True]
    assert cli("list", "-q").out.splitlines()[-1] == "user/repo:Q4_K_M"
    assert cli("rm", "user/repo:b-q4_k_m.gguf", "-y").code == 0
    assert cache.models() == []


def test_list_catalogue_offline(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert cli("list", "--catalogue").code == 0


def test_show(cli: Cli, tiny: Path) -> None:
    result = cli("show", "tiny.gguf")
    assert result == Result(
        0,
        "name          tiny\n"
        "file          tiny.gguf\n"
        "architecture  llama\n"
        "parameters    1.0k\n"
        "quantization  F32\n"
        f"size          {tiny.stat().st_size / 1000:.1f} kB\n"
        "context       2048 tokens\n"
        "vocabulary    200 tokens (gpt2 smollm)\n"
        'special       bos 0 "<s>", eos 1 "</s>"\n'
        "template      none\n"
        "license       apache-2.0\n",
        "",
    )


def test_show_json(cli: Cli, tiny: Path) -> None:
    data = json.loads(cli("show", str(tiny), "--json").out)
    assert data["parameters"] == 1024
    assert data["vocabulary"]["special"]["eos"] == {"id": 1, "text": "</s>"}


def test_show_of_a_missing_file(cli: Cli, tiny: Path) -> None:
    assert cli("show", "tinny.gguf") == Result(
        1,
        "",
        "Error: Model file not found: tinny.gguf.\nNearest in that folder: tiny.gguf.\n",
    )


def test_metadata_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "evil.gguf", extra={"general.type": "\x1b[2Jmodel"})
    write_gguf(tmp_path / "evil.gguf", architecture="llama", tokens=["\x1b[2J"] * 200, bos=0)
    assert "\x1b" not in cli("show", str(path)).out


def test_check_of_a_pair(cli: Cli, tiny: Path) -> None:
    result = cli("check", "-m", "tiny.gguf", "-md", "tiny.gguf")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "Yes: tiny.gguf can serve tiny.gguf."
    assert [line.split()[0] for line in lines[2:5]] == ["MEMORY", "target", "draft"]
    assert "together (an estimate)" in lines[5]


def test_check_of_strangers_is_exit_1_and_no_error(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "work" / "other.gguf", tokens=["x"] * 100)
    result = cli("check", "-m", "tiny.gguf", "-md", "other.gguf")
    assert result.code == 1
    assert result.err == ""
    assert result.out.startswith(
        "No: other.gguf cannot serve tiny.gguf.\n"
        '  token 0 is "<s>" in the target and "x" in the draft\n'
        "  vocabulary sizes differ: 200 and 100\n"
    )
    assert "\n  With --translate its guesses go through text, and it can.\n" in result.out


def test_check_json(cli: Cli, tiny: Path) -> None:
    result = cli("check", "-m", "tiny.gguf", "-md", "tiny.gguf", "-c", "1000", "--json")
    data = json.loads(result.out)
    assert data["compatible"] is True
    assert data["differing_ids"] == 0
    assert data["memory"]["target"]["kv_cache"] == 32_000


def test_check_without_a_draft(cli: Cli, tiny: Path) -> None:
    assert cli("check", "-m", "tiny.gguf") == Result(
        2, "", "Error: No draft given for tiny.gguf.\nName one: -md MODEL\n"
    )


def test_check_takes_an_alias(cli: Cli, tiny: Path) -> None:
    assert cli("alias", "set", "pair", "tiny.gguf", "-md", "tiny.gguf").code == 0
    assert cli("check", "-m", "pair").code == 0


def test_check_of_a_file_that_is_cut(cli: Cli, tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-100])
    result = cli("check", "-m", "tiny.gguf", "-md", "tiny.gguf")
    assert result.code == 1
    assert "tiny.gguf is not a complete GGUF file" in result.err


def test_aliases_live_from_set_to_rm(cli: Cli, tiny: Path) -> None:
    result = cli("alias", "set", "q", "tiny.gguf", "--draft", "user/repo:Q4_0", "--draft-max", "8")
    assert result.code == 0
    assert result.out == ""
    assert "Warning: user/repo:Q4_0 is not in the cache." in result.err

    assert cli("alias", "list") == Result(
        0, f"NAME  MODEL\nq     {tiny} + user/repo:Q4_0 (draft-max 8)\n", ""
    )
    assert json.loads(cli("alias", "list", "--json").out) == [
        {"name": "q", "target": str(tiny), "draft": "user/repo:Q4_0", "draft_max": 8}
    ]
    assert cli("alias", "rm", "q").code == 0
    assert json.loads(cli("alias", "list", "--json").out) == []


def test_an_alias_without_a_draft(cli: Cli, tiny: Path) -> None:
    result = cli("alias", "set", "q", "tiny.gguf", "--draft", "none")
    assert (result.code, result.err) == (0, f"q = {tiny} + none\n")


def test_an_alias_of_the_home_of_nobody(cli: Cli) -> None:
    result = cli("alias", "set", "q", "~nouser/x.gguf")
    assert result.code == 0
    assert result.err.startswith("Warning: Model file not found: ~nouser/x.gguf.")


def test_an_alias_that_could_be_something_else(cli: Cli) -> None:
    for name in ("a/b", "x.gguf", "-m", ""):
        result = cli("alias", "set", "--", name, "target.gguf")
        assert result.code == 2, name
        assert "cannot be an alias" in result.err


def test_rm_of_an_unknown_alias(cli: Cli) -> None:
    assert cli("alias", "rm", "q") == Result(2, "", "Error: No alias 'q'.\nThere are none.\n")


def test_an_alias_file_somebody_broke(cli: Cli) -> None:
    aliases.path().write_text('{"q": {"tarket": "x"}}')
    result = cli("alias", "list")
    assert result.code == 2
    assert f"{aliases.path()} does not hold aliases" in result.err


def test_alias_alone_is_help(cli: Cli) -> None:
    result = cli("alias")
    assert result.code == 2
    assert result.out.startswith("Usage: specllama alias [OPTIONS] COMMAND")
    assert "Names for a model or a pair." in result.out
    assert result.err == ""


def test_doctor_never_shows_the_token(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    result = cli("doctor")
    assert result.code == 0
    assert "hf_secret" not in result.out + result.err
    assert "token             yes" in result.out


def test_doctor_tells_where_nothing_was_compiled(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.sampling.few._few", None)
    assert "laws              NumPy (no C compiler" in cli("doctor").out
    monkeypatch.setattr("specllama.sampling.few._few", object())
    assert "laws              compiled\n" in cli("doctor").out


def test_doctor_names_the_variables_that_change_something(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names alone, whatever they hold."""
    for name in ("GGML_CUDA_GRAPH_OPT", "CUDA_VISIBLE_DEVICES", "MY_SECRET"):
        monkeypatch.setenv(name, "hf_secret")
    said = json.loads(cli("doctor", "--json").out)["files"]["environment"]
    assert {"CUDA_VISIBLE_DEVICES", "GGML_CUDA_GRAPH_OPT"} <= set(said.split(", "))
    assert "SECRET" not in said.upper()


def test_doctor_survives_a_broken_home_and_cache(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/dev/null/token")
    result = cli("doctor", "--json")
    assert result.code == 0
    facts = json.loads(result.out)["hugging face"]
    assert facts["models"].startswith("unknown (The Hugging Face cache ")
    assert facts["token"].startswith("unknown (")
    assert cli("list").err.startswith("Error: The Hugging Face cache ")


def test_doctor_names_variables_that_nothing_reads(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_DRAFTMAX", "3")
    data = json.loads(cli("doctor", "--json").out)
    assert data["files"]["unknown"] == "SPECLLAMA_DRAFTMAX"


def test_doctor_survives_without_llama_cpp(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specllama.llama.library", None)
    data = json.loads(cli("doctor", "--json").out)
    assert data["llama.cpp"]["error"].startswith("ModuleNotFoundError")
    assert data["packages"]["typer"]
    assert data["hugging face"]["token"] == "no"


def test_rm_counts_what_is_named_twice_once(cli: Cli) -> None:
    path = put_into_cache("a-Q4_K_M.gguf")
    size = path.stat().st_size
    names = ("user/repo:Q4_K_M", "user/repo", "user/repo")
    data = json.loads(cli("rm", *names, "--yes", "--json").out)
    assert data == {"deleted": ["user/repo:Q4_K_M"], "bytes": size, "dry_run": False}


def test_an_alias_of_nothing(cli: Cli) -> None:
    result = cli("alias", "set", "a", "")
    assert result == Result(2, "", "Error: 'a' would stand for no model.\nName its target.\n")
    assert json.loads(cli("alias", "list", "--json").out) == []
