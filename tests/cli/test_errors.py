"""From exceptions to messages and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.cli import app, main
from specllama.cli.errors import describe
from specllama.errors import HubError, SpecllamaError, UsageError

from .conftest import Result

Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (HubError("Gone.", "Come back."), "Gone.", 1),
        (UsageError("Wrong."), "Wrong.", 2),
        (KeyboardInterrupt(), "", 130),
        (BrokenPipeError(), "", 1),
        (EOFError(), "Nothing was answered.", 1),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied.", 1),
        (MemoryError(), "Not enough memory.", 1),
        (ValueError("odd"), "ValueError: odd", 1),
        (RuntimeError(), "RuntimeError", 1),
    ],
)
def test_the_table(error: BaseException, message: str, code: int) -> None:
    assert describe(error).message == message
    assert describe(error).code == code


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def show(model: str) -> None:
        raise error

    monkeypatch.setattr("specllama.cli.models.show", show)


def test_message_and_hint_on_stderr(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, SpecllamaError("It broke.", "Mend it."))
    assert cli("show", "x") == Result(1, "", "Error: It broke.\nMend it.\n")


def test_json_errors_are_also_on_stdout(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, UsageError("It broke.", "Mend it."))
    result = cli("show", "x", "--json")
    assert json.loads(result.out) == {"error": {"message": "It broke. Mend it.", "code": 2}}
    assert result.code == 2


def test_a_bug_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    assert cli("show", "x") == Result(
        1,
        "",
        "Error: ZeroDivisionError: division by zero\n"
        "This is a bug; run with --debug for the traceback.\n",
    )


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    for args in (("show", "x", "--debug"), ("--debug", "show", "x")):
        assert "Traceback (most recent call last)" in cli(*args).err


def test_ctrl_c_is_130_and_silent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert cli("show", "x") == Result(130, "", "")


def test_unknown_command_suggests(cli: Cli) -> None:
    assert cli("lsit") == Result(
        2, "", "Error: No such command 'lsit'. Did you mean 'list'?\nRun: specllama --help\n"
    )


def test_unknown_option_says_where_the_help_is(cli: Cli) -> None:
    result = cli("list", "--catalog")
    assert result.code == 2
    assert "No such option: --catalog" in result.err
    assert "--catalogue" in result.err
    assert result.err.endswith("Run: specllama list --help\n")


def test_usage_errors_are_json_too(cli: Cli) -> None:
    result = cli("show", "--json")
    assert json.loads(result.out)["error"]["code"] == 2
    assert "Missing argument" in json.loads(result.out)["error"]["message"]


def test_no_command_shows_the_help(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "Usage: specllama" in result.out


def test_help_short_and_long(cli: Cli) -> None:
    assert cli("-h").out == cli("--help").out
    assert cli("list", "-h") == cli("list", "--help")
    assert cli("list", "-h").code == 0


def test_help_lines_are_the_docstrings() -> None:
    """A command's one line in the overview is the first line of its own help."""
    for name, (_, line) in main.COMMANDS.items():
        command = app._load(name)
        assert (command.help or "").strip().splitlines()[0] == line, name


def test_every_command_has_the_common_options(cli: Cli) -> None:
    for name in ("list", "show", "check", "download", "doctor"):
        text = cli(name, "--help").out
        for option in ("--json", "--quiet", "--no-color", "--debug", "--help"):
            assert option in text, (name, option)


def test_ls_is_list(cli: Cli) -> None:
    assert cli("ls") == cli("list")


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert result.code == 0
    assert result.out.startswith("specllama ")


@pytest.mark.parametrize("heavy", ["llama_cpp", "numpy", "huggingface_hub", "gguf", "jinja2"])
def test_help_imports_nothing_heavy(heavy: str) -> None:
    script = (
        "import sys; from specllama.cli.main import run; run(['--help']); "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_full_disk_is_a_sentence(option: str) -> None:
    done = shell(f"config show {option} >/dev/full")
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device.\n")


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [("list >&-", 0, ""), ("list 2>&-", 0, ""), ("generate <&-", 2, "The prompt is empty.")],
)
def test_streams_may_be_closed(line: str, code: int, error: str) -> None:
    done = shell(line)
    assert done.returncode == code
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("entry", ["specllama.cli.main", "specllama.__main__"])
def test_ctrl_c_while_typer_loads_is_silent(entry: str) -> None:
    script = f"""
import sys
class Pressing:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressing())
sys.argv[1:] = ["list"]
from {entry} import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (130, "")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m specllama {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, text=True)


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    command = f"{sys.executable} -m specllama config show | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, text=True)
    assert done.stderr == ""
