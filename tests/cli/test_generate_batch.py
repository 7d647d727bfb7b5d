"""`specllama generate --batch` over a pool without a model file."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specllama.cli.generate_batch import Batch
from specllama.cli.main import run
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
    assert (answer["verify"], answer["lossless"]) == ("coupled", True)


def test_an_answer_that_the_full_context_cut_off_is_told(batch: Command) -> None:
    result = batch([{"prompt": "abc"}, {"prompt": "b", "max_tokens": 600}])
    assert [answer["finish_reason"] for answer in parsed(result)] == ["length", "context"]
    assert result.code == 0
    assert "Line 2: The context is full (400 tokens): the answer is cut off." in result.err
    assert "Line 1" not in result.err


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
        ({"id": 7}, "either prompt or messages"),
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
        ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
        ('{"prompt": "a", "temperature": 1' + "0" * 400 + "}", "temperature is too large"),
        ({"prompt": "a", "id": "a\ud800"}, "id: The text is not valid Unicode"),
        ({"prompt": "a\ud800"}, "not valid Unicode"),
        ({"prompt": "z"}, "ValueError"),
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


def test_an_id_that_is_another_lines_number(batch: Command) -> None:
    """Both would be 1."""
    first, second = parsed(batch([{"prompt": "abc"}, {"prompt": "de", "id": 1}]))
    assert first["text"] == says("abc")
    assert "used twice" in second["error"]["message"]


def test_a_bad_line_costs_no_other_in_a_file(batch: Command) -> None:
    lines = ['{"prompt": "a", "id": "a\\ud800"}', {"prompt": "abc", "\ud800": 1}, {"prompt": "de"}]
    assert batch(lines, "-o", str(batch.output)).code == 1
    assert [answer["id"] for answer in batch.answers] == [1, 2, 3]
    assert batch.answers[2]["text"] == says("de")


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

    @pytest.mark.parametrize(
        "other",
        [("-m", "other.gguf"), ("--temp", "1"), ("-sys", "Be brief."), ("--raw",)],
    )
    def test_answers_of_another_model_or_settings_are_told(
        self, batch: Command, other: tuple[str, ...]
    ) -> None:
        """Comparing two models, one forgets another -o."""
        batch([*self.LINES], "-o", str(batch.output))
        before = batch.answers
        assert {answer["model"] for answer in before} == {"fake"}
        result = batch([*self.LINES, {"prompt": "i"}], "-o", str(batch.output), *other)
        assert f"3 answers in {batch.output} came from another model or other" in result.err
        assert batch.answers[:3] == before

    def test_how_it_drafts_makes_no_other_answers(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        (batch.output.parent / "like.txt").write_text("abc")
        like = ("--predict-file", str(batch.output.parent / "like.txt"))
        more = ("--drafter", "suffix", "--draft-max", "3", "--no-adaptive", *like)
        assert "another model" not in batch([*self.LINES], "-o", str(batch.output), *more).err

    def test_another_file_is_not_overwritten(self, batch: Command) -> None:
        batch.output.write_text("precious\ntext\n")
        result = batch([*self.LINES], "-o", str(batch.output))
        assert result.code == 2
        assert "not the output of a batch" in result.err
        assert batch.output.read_text() == "precious\ntext\n"

    @pytest.mark.parametrize(
        "text", ["a note", '{"name":"x","version":"1"}', '{"id": 1, "prompt": "abc"}', "[1", "1"]
    )
    def test_one_line_without_an_end_is_no_torn_answer(self, batch: Command, text: str) -> None:
        batch.output.write_text(text)
        result = batch([*self.LINES], "-o", str(batch.output))
        assert result.code == 2
        assert "not the output of a batch (line 1)" in result.err
        assert batch.output.read_text() == text

    @pytest.mark.parametrize("n_bytes", [1, 5, 12, 30])
    def test_a_first_answer_that_was_torn_is_given_anew(self, batch: Command, n_bytes: int) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        whole = batch.output.read_bytes()
        batch.output.write_bytes(whole[:n_bytes])
        assert batch([*self.LINES], "-o", str(batch.output)).code == 0
        assert [answer["id"] for answer in batch.answers] == ["x", 2, 3]

    def test_an_answer_torn_within_a_character(self, batch: Command) -> None:
        lines = [{"prompt": "abc"}, {"prompt": "de", "id": "ü"}]
        batch(lines, "-o", str(batch.output))
        whole = batch.output.read_bytes()
        batch.output.write_bytes(whole[: whole.index("ü".encode()) + 1])
        assert batch(lines, "-o", str(batch.output)).code == 0
        assert [answer["id"] for answer in batch.answers] == [1, "ü"]

    @pytest.mark.parametrize("text", ['{"id": [1], "of": []}\n', "[[" * 100_000 + "\n"])
    def test_odd_json_is_no_answer(self, batch: Command, text: str) -> None:
        batch.output.write_text(text)
        assert batch([*self.LINES], "-o", str(batch.output)).code == 2
        assert batch.output.read_text() == text

    def test_the_batch_is_not_its_own_output(self, batch: Command) -> None:
        link = batch.file.with_name("link.jsonl")
        link.symlink_to(batch.file)
        for output in (batch.file, link):
            result = batch([{"prompt": "abc"}], "-o", str(output))
            assert result.code == 2
            assert "is the batch itself" in result.err
            assert json.loads(batch.file.read_text()) == {"prompt": "abc"}

    def test_nothing_is_written_before_a_model_answers(
        self, batch: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        before = batch.output.read_text()
        batch.file.write_text('{"prompt": "other"}\n')
        options = ("-o", str(batch.output), "-m", str(batch.file.with_name("no.gguf")), "--offline")
        assert run(["generate", "--batch", str(batch.file), *options]) == 1
        assert batch.output.read_text() == before
        assert {*batch.file.parent.glob("*out*")} == {batch.output}

    def test_moved_lines_keep_their_answers(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        decoder = FakeDecoder(2)
        batch([{"prompt": "g"}, *self.LINES], "-o", str(batch.output), decoder=decoder)
        assert len(decoder.drafters.answers) == 1
        assert [answer["id"] for answer in batch.answers] == [1, "x", 3, 4]
        assert [answer["text"] for answer in batch.answers] == [
            says("g"), says("abc"), says("de"), says("f")
        ]  # fmt: skip

    def test_equal_lines_have_an_answer_each(self, batch: Command) -> None:
        batch([{"prompt": "de"}] * 2, "-o", str(batch.output))
        decoder = FakeDecoder(2)
        batch([{"prompt": "de"}] * 3, "-o", str(batch.output), decoder=decoder)
        assert len(decoder.drafters.answers) == 1
        assert [answer["id"] for answer in batch.answers] == [1, 2, 3]

    def test_answers_to_lines_that_are_gone_are_set_aside(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        result = batch([*self.LINES[:1], {"prompt": "i"}], "-o", str(batch.output))
        assert "2 earlier answers to other lines" in result.err
        aside = batch.output.with_name("out.jsonl.old").read_text().splitlines()
        assert [json.loads(line)["text"] for line in aside] == [says("de"), says("f")]

    def test_fewer_lines_need_no_model(self, batch: Command) -> None:
        batch([*self.LINES], "-o", str(batch.output))
        assert batch([*self.LINES[1:]], "-o", str(batch.output)).code == 0
        assert [answer["id"] for answer in batch.answers] == [1, 2]

    def test_a_link_stays_a_link_and_a_mode_a_mode(self, batch: Command) -> None:
        batch.output.touch(0o600)
        link = batch.output.with_name("link.jsonl")
        link.symlink_to(batch.output)
        assert batch([*self.LINES], "-o", str(link)).code == 0
        assert link.is_symlink()
        assert len(batch.answers) == 3
        assert stat.S_IMODE(batch.output.stat().st_mode) == 0o600

    def test_only_files_are_written(self, batch: Command) -> None:
        os.mkfifo(batch.output)
        for output in (batch.output, batch.output.parent):
            result = batch([*self.LINES], "-o", str(output))
            assert result.code == 2
            assert "is not a regular file" in result.err
        assert batch.output.is_fifo()

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

    def test_ctrl_c_keeps_what_has_ended_unseen(
        self, batch: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both lines have ended when the first is taken and Ctrl-C comes."""
        take = Batch._take

        def press(self: Batch, line: Any, ticket: Any) -> None:
            if not self.cancelled:
                for _, other in (*self._under_way.values(), (line, ticket)):
                    other.wait()
                signal.raise_signal(signal.SIGINT)
            take(self, line, ticket)

        monkeypatch.setattr(Batch, "_take", press)
        result = batch([{"prompt": "abc"}, {"prompt": "de"}], "-o", str(batch.output))
        assert result.code == 130
        assert [answer["text"] for answer in batch.answers] == [says("abc"), says("de")]


class TestOptions:
    @pytest.mark.parametrize(
        "more",
        [
            ("hello",), ("",), ("--jsonl",), ("--show-draft",), ("-f", "x"), ("--beams", "2"),
            ("--beams", "0"), ("--n-best", "2"), ("--length-penalty", "0"), ("--early-stopping",),
        ],
    )  # fmt: skip
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
