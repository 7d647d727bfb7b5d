"""scripts/gpu_bench.py: costs, bits at a constant width, and a report that survives its parts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_bench
import numpy as np
import pytest
from peers.arms import BASELINE, OURS
from peers.protocol import PeerError


class Card:
    """A backend whose rows tell how many tokens their batch had, as kernels chosen by size do.

    Attributes:
        shapes: tokens of each decode.
    """

    n_seq, n_outputs, n_vocab = 2, 16, 8

    def __init__(self) -> None:
        self.shapes: list[int] = []
        self.held = {0: 0, 1: 0}

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> np.ndarray:
        for place, (seq,) in zip(positions, sequences, strict=True):
            assert place == self.held[seq]
            self.held[seq] += 1
        self.shapes.append(len(tokens))
        rows = np.array(tokens, np.float32)[:, None] + np.arange(self.n_vocab, dtype=np.float32)
        return (rows + 1e-3 * (len(tokens) > 1))[np.array(outputs)]

    def truncate(self, seq: int, length: int) -> bool:
        self.held[seq] = length
        return True

    def drop(self, seq: int) -> None:
        self.held[seq] = 0


def test_costs_are_measured_at_their_sizes() -> None:
    card = Card()
    costs = gpu_bench.batch_costs(card, (1, 3, 99), depth=32)
    assert set(costs) == {1, 3}  # the context gives no 99 rows
    assert all(ms > 0 for ms in costs.values())
    assert card.shapes == [32] + [1] * gpu_bench.N_TIMED + [3] * gpu_bench.N_TIMED
    assert card.held == {0: 0, 1: 0}


def test_a_kernel_chosen_by_size_is_found_out() -> None:
    card = Card()
    random = np.random.default_rng(0)
    assert gpu_bench.ragged_difference(card, 20, 0, random) == pytest.approx(1e-3, rel=0.1)
    assert gpu_bench.ragged_difference(card, 20, 4, random) == 0.0
    assert set(card.shapes[-gpu_bench.N_EXACT - 1 :]) <= {4, 20}
    assert card.held == {0: 0, 1: 0}


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    args = argparse.Namespace(
        out=tmp_path / "out", source=Path("small.gguf"), sizes=["8b"], temps=[0.0], work=tmp_path
    )
    gpu_bench.prepare(argparse.Namespace(**vars(args) | {"draft": Path("draft.gguf")}))
    return gpu_bench.Bench(args, None)


def test_folders_are_made(tmp_path: Path) -> None:
    work, out = tmp_path / "a" / "work", tmp_path / "b" / "out"
    given = {"source": Path("small.gguf"), "draft": Path("draft.gguf"), "sizes": ["8b"]}
    gpu_bench.prepare(argparse.Namespace(work=work, out=out, **given))
    assert work.is_dir()
    assert out.is_dir()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    args = argparse.Namespace(work=tmp_path / "file" / "work", out=tmp_path)
    with pytest.raises(SystemExit, match=r"Cannot make the folder .*work: .*\. Name another one"):
        gpu_bench.prepare(args)


@pytest.mark.parametrize("given", ["source", "draft"])
def test_a_model_that_was_given_is_not_replaced(tmp_path: Path, given: str) -> None:
    files = {"source": Path("small.gguf"), "draft": Path("draft.gguf")}
    files[given] = tmp_path / "widened-8b.gguf"
    files[given].touch()
    args = argparse.Namespace(work=tmp_path, out=tmp_path, sizes=["70b", "8b"], **files)
    with pytest.raises(SystemExit, match=r"8b\.gguf is read and would be written over"):
        gpu_bench.prepare(args)


def reply(bench: Any, arm: str, tok_s: float | None, accepted: int = 0, **more: Any) -> None:
    told = {"tok_s": tok_s, "rounds": 10, "drafted": 20 if accepted else 0, "accepted": accepted}
    bench.runs.add("8b", arm, "chat-1", "0", **told, **more)


def test_the_report(bench: Any) -> None:
    reply(bench, gpu_bench.PLAIN, 100.0, outside=0.012)
    reply(bench, OURS, 150.0, 12, outside=0.034)
    reply(bench, BASELINE, 120.0)
    reply(bench, "llama-server, draft-simple 3", None)
    bench.parts["8b: ms a decode"] = {"target": {1: 3.1, 2: 3.3}}
    with bench.part("8b: arms"):
        raise PeerError("the card is gone.")
    page = (bench.args.out / "report.md").read_text()
    assert "| specllama | 1 | 150.0 | 1.50x | 1.50x | 1.25x | 60% | 2.20 | 3.4% |" in page
    assert "| llama-server, draft-simple 3 | 0 |  |  |  |  |  | 1.00 |  |" in page
    assert "| ms | 3.1 | 3.3 |" in page
    assert "8b: arms failed: the card is gone." in page


def test_arms_answer_blocks_in_turns(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block behind a question that does not count; the order turns round."""
    told: list[str] = []
    bench.asked = SimpleNamespace(warm_up="")
    monkeypatch.setattr(gpu_bench, "_ask", lambda _b, _s, _o, peer, asked: told.append(
        f"{peer.name}{asked}"))  # fmt: skip
    monkeypatch.setattr(gpu_bench, "_blocks", lambda _bench: [[1, 2], [3]])

    class Arm:
        def __init__(self, name: str) -> None:
            self.name = name

        def ask(self, _warm_up: object) -> None:
            told.append(f"{self.name}-")

        def open(self) -> None: ...

        def close(self) -> None: ...

    gpu_bench.take_turns(bench, "8b", [Arm("a"), Arm("b")], until=1e9)
    assert told == ["a-", "a1", "a2", "b-", "b1", "b2", "b-", "b3", "a-", "a3"]


def test_a_widening_that_fails_is_told(bench: Any) -> None:
    with bench.part("8b: widening"):
        gpu_bench.wait(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
    assert bench.notes == ["8b: widening failed: it left with 3."]


def test_exact_texts_are_compared(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.args.draft, bench.args.threads = Path("draft.gguf"), 1
    asked: list[list[str]] = []
    reply: dict[str, Any] = {"accepted": 5, "odd": ""}

    def run(command: list[str], timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        assert timeout == gpu_bench.FLAGS_S
        if reply["accepted"] is None:
            raise subprocess.TimeoutExpired(command, timeout)
        text = "plain" if "none" in command else "plain" + reply["odd"]
        told = {"text": text, "spec": {"accepted": reply["accepted"]}}
        return subprocess.CompletedProcess(command, 0, json.dumps(told), "")

    monkeypatch.setattr(subprocess, "run", run)
    found = bench.parts
    for accepted, odd, same in ((5, "", True), (5, "!", False), (0, "", False), (None, "", False)):
        reply.update(accepted=accepted, odd=odd)
        gpu_bench.check_flags(bench, "8b")
        assert found["8b: specllama generate"]["exact: same text"] is same
    assert len(asked) == 4 * (len(gpu_bench.FLAGS) + 2 * len(gpu_bench.EXACT))
    assert found["8b: specllama generate"]["--exact --temp 0"] == "no answer within 90 s"
