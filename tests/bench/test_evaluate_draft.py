"""scripts/evaluate_draft.py: what it refuses, in a sentence and before anything is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import evaluate_draft
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "evaluate_draft.py"


def refusal(*arguments: object) -> str:
    """The last line of what the script says when it leaves."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode not in (0, -11)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("missing", ["target", "draft", "prompts"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.gguf" for name in ("target", "draft", "prompts")}
    for name, file in files.items():
        if name != missing:
            file.write_text("{}")
    said = refusal(files["target"], files["draft"], "--prompts", files["prompts"])
    assert said.endswith(f"{files[missing]} is no file")


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    file = tmp_path / "target.gguf"
    file.write_text("no model")
    assert refusal(file, file).startswith("target.gguf is not a GGUF file")


@pytest.mark.parametrize("flag", ["--tokens", "--threads", "--context"])
def test_nothing_is_too_little(flag: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path, flag, 0).endswith("0 is not a whole number of at least 1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "has no prompts"), ('{"kind": "chat"}', "line 1"), ("[]", "line 1"), ("x", "line 1")],
)
def test_prompts_that_are_none_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason):
        evaluate_draft.read_prompts(file)


def test_its_own_prompts_can_be_read() -> None:
    assert len(evaluate_draft.read_prompts(evaluate_draft.PROMPTS)) == 50


@pytest.mark.model
def test_a_prompt_longer_than_the_context_is_refused(target_file: Path) -> None:
    """It was written behind the end of the batch's memory."""
    assert "--context 8" in refusal(target_file, target_file, "--context", 8, "--tokens", 1)
