"""`specllama generate --batch` over a pool without a model file."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specllama.drafting.protocol import Drafter
from specllama.verification.types import Proposal
from tests.cli.fakes import Result, run_with
from tests.fake_decoder import LETTERS, FakeDecoder

PLAIN = ("--temp", "0", "-n", "5", "--seed", "1", "--drafter", "none")


class Command:
    """Runs a batch in a folder; its lines are texts or objects."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self.file = folder / "in.jsonl"
        self.output = folder / "out.jsonl"

    def __call__(self, lines: list[Any], *more: str, decoder: FakeDecoder | None = None) -> Result:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.file.write_text("\n".join(texts) + "\n")
        fake: Any = decoder or FakeDecoder(4)
        return run_with(
            self._monkeypatch, fake, "generate", "--batch", str(self.file), *PLAIN, *more
        )

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    return Command(monkeypatch, tmp_path)


def parsed(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


def says(prompt: str, count: int = 5) -> str:
    return FakeDecoder().says(prompt, count)


def test_answers_in_order(batch: Command) -> None:
    """Also where the first line takes longest."""
    prompts = ["abc", "b", "cd", "de", "e", "f", "gg", "h", "i"]
    lines = [{"prompt": p, "max_tokens": 60 if n == 0 else 5} for n, p in enumerate(prompts)]
    result = batch(lines)
    assert result.code == 0
    answers = parsed(result)
    assert [answer["id"] for answer in answers] == list(range(1, 10))
    assert [answer["text"] for answer in answers] == [
        says(p, 60 if n == 0 else 5) for n, p in enumerate(prompts)
    ]
    assert "9 of 9" in result.err


def test_an_answer_tells_how_it_came(batch: Command) -> None:
    (answer,) = parsed(batch([{"prompt": "abc", "id": "first"}]))
    assert answer["id"] == "first"
    assert answer["finish_reason"] == "length"
    assert answer["seed"] == 1
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "cached_tokens": 0}
    assert answer["spec"]["rounds"] == 5


def test_own_settings(batch: Command) -> None:
    stop = says("abc", 8)[3:5]
    lines = [
        {"prompt": "abc", "max_tokens": 8, "stop": [stop]},
        {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2, "temperature": 0},
    ]
    first, second = parsed(batch(lines))
    assert first["text"] == says("abc", 8)[: says("abc", 8).index(stop)]
    assert second["text"] == says("abc", 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"id": 3}, "either prompt or messages"),
        ({"prompt": "a", "messages": []}, "either prompt or messages"),
        ({"prompt": 3}, "prompt must be a text"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a" * 900}, "900 tokens"),
        ({"messages": "a"}, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, "role and content"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "Unknown role 'robot'"),
        ({"prompt": "a", "temprature": 1}, "Unknown setting 'temprature'"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": "a", "temperature": -1}, "temperature must be at least 0"),
        ({"prompt": "a", "temperature": True}, "temperature must be a number"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"prompt": "a", "stop": [""]}, "stop string"),
        ({"prompt": "a", "verify": "never"}, "Unknown verify"),
        ({"prompt": "a", "id": 1.5}, "id must be"),
        ({"prompt": "a", "id": 1}, "used twice"),
    ],
)
def test_a_bad_line_costs_no_other(batch: Command, line: Any, why: str) -> None:
    result = batch([{"prompt": "abc", "id": 1}, line, {"prompt": "de"}])
    assert result.code == 1
    first, bad, last = parsed(result)
    assert (first["text"], last["text"]) == (says("abc"), says("de"))
    assert why in bad["error"]["message"]
    assert f"Line 2: {bad['error']['message']}" in result.err
    assert "2 of 3" in result.err


class Bad(Drafter):
    """Cannot bear prompts that start with k."""

    name = "suffix"

    def propose(self, wants: Any) -> list[Proposal]:
        if any(want.ids[0] == LETTERS.index("k") for want in wants):
            raise ZeroDivisionError("k")
        return [Proposal() for _ in wants]


def test_a_line_that_breaks_costs_no_other(batch: Command) -> None:
    lines = [{"prompt": p, "drafter": "suffix"} for p in ("abc", "k", "de")]
    result = batch(lines, "--no-adaptive", decoder=FakeDecoder(2, [Bad()]))
    assert result.code == 1
    first, bad, last = parsed(result)
    assert (first["text"], last["text"]) == (says("abc"), says("de"))
    assert "ZeroDivisionError" in bad["error"]["message"]


class TestResuming:
    LINES = ({"prompt": "abc", "id": "x"}, {"prompt": "de"}, {"prompt": "f"})

    def test_a_whole_output_is_left_alone(self, batch: Command) -> None:
        assert batch([*self.LINES], "-o", str(batch.output)).code == 0
        before = batch.output.read_text()
        result = batch([*self.LINES], "-o", str(batch.output))
        assert (result.code, result.out) == (0, "")
        assert "already" in result.err
        assert batch.output.read_text() == before

    def test_only_what_is_missing(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        whole = batch.answers
        batch.output.write_text(json.dumps(whole[2]) + "\n" + json.dumps(whole[0])[:20])
        decoder = FakeDecoder(2)
        result = batch([*self.LINES], "-o", str(batch.output), decoder=decoder)
        assert result.code == 0
        assert [a["id"] for a in batch.answers] == ["x", 2, 3]
        assert batch.answers[2] == whole[2]
        assert [a["text"] for a in batch.answers] == [a["text"] for a in whole]
        assert len(decoder.drafters.answers) == 2, "one line was answered twice"
        assert "1 were already" in result.err

    def test_failures_are_tried_again(self, batch: Command) -> None:
        lines = [{"prompt": "k", "drafter": "suffix"}, *self.LINES]
        options = ("-o", str(batch.output), "--no-adaptive")
        assert batch(lines, *options, decoder=FakeDecoder(2, [Bad()])).code == 1
        assert batch(lines, *options).code == 0
        assert [answer["text"] for answer in batch.answers] == [
            says("k"), says("abc"), says("de"), says("f")
        ]  # fmt: skip

    def test_a_changed_line_is_answered_anew(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        batch([*self.LINES[:1], {"prompt": "i"}], "-o", str(batch.output))
        assert [answer["text"] for answer in batch.answers] == [says("abc"), says("i")]

    def test_another_file_is_not_overwritten(self, batch: Command) -> None:
        batch.output.write_text("precious\ntext\n")
        result = batch([*self.LINES], "-o", str(batch.output))
        assert result.code == 2
        assert "not the output of a batch" in result.err
        assert batch.output.read_text() == "precious\ntext\n"

    def test_nowhere_to_write(self, batch: Command, tmp_path: Path) -> None:
        result = batch([*self.LINES], "-o", str(tmp_path / "missing" / "out.jsonl"))
        assert result.code == 2
        assert "Cannot write" in result.err

    def test_ctrl_c_keeps_what_is_done(self, batch: Command) -> None:
        """The second line is done while the first is not; a second run does the rest."""
        decoder = FakeDecoder(2)
        decodes = 0

        def press() -> None:
            nonlocal decodes
            decodes += 1
            if decodes == 30:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if decodes >= 30:  # as slow as a model, or all would be said before the signal
                time.sleep(0.02)

        decoder.target.on_decode = lambda _: press()
        lines = [{"prompt": "abc", "max_tokens": 200}, {"prompt": "de"}, {"prompt": "f"}]
        result = batch(lines, "-o", str(batch.output), "-np", "2", decoder=decoder)
        assert result.code == 130
        assert {answer["id"] for answer in batch.answers} >= {2}
        assert 1 not in {answer["id"] for answer in batch.answers}
        assert batch(lines, "-o", str(batch.output)).code == 0
        assert [answer["id"] for answer in batch.answers] == [1, 2, 3]
        assert batch.answers[0]["text"] == says("abc", 200)


class TestOptions:
    @pytest.mark.parametrize(
        "more", [("hello",), ("--jsonl",), ("--show-draft",), ("-f", "x"), ("--beams", "2")]
    )
    def test_nothing_beside_a_batch(self, batch: Command, more: tuple[str, ...]) -> None:
        result = batch([{"prompt": "abc"}], *more)
        assert result.code == 2
        assert "--batch cannot be used together" in result.err

    @pytest.mark.parametrize("option", ["-o", "-np"])
    def test_options_of_a_batch_need_one(
        self, monkeypatch: pytest.MonkeyPatch, option: str
    ) -> None:
        fake: Any = FakeDecoder()
        result = run_with(monkeypatch, fake, "generate", "abc", option, "3")
        assert result.code == 2
        assert "need --batch" in result.err

    @pytest.mark.parametrize("text", ["", "\n \n"])
    def test_an_empty_file(self, batch: Command, text: str) -> None:
        result = batch([text])
        assert result.code == 2
        assert "has no lines" in result.err

    def test_a_missing_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake: Any = FakeDecoder()
        result = run_with(monkeypatch, fake, "generate", "--batch", str(tmp_path / "none"))
        assert result.code == 2
        assert "Cannot read" in result.err

    def test_raw_is_for_texts(self, batch: Command) -> None:
        message = {"messages": [{"role": "user", "content": "a"}]}
        result = batch([{"prompt": "abc"}, message], "--raw")
        text, conversation = parsed(result)
        assert text["text"] == says("abc")
        assert "messages" in conversation["error"]["message"]
