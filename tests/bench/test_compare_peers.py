"""scripts/compare_peers.py: turns, failures and resumption with peers made by hand; its report."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import compare_peers
import pytest
from peers import native, report
from peers.arms import BASELINE, OURS, Arms, Open
from peers.child import Child, Worker
from peers.native import Server, read_reply
from peers.protocol import Files, Peer, PeerError, Reply, Request, Sampling, rate
from peers.runs import Runs

from specllama.errors import UsageError

REQUEST = Request("Hi there", (1, 2, 3), 8, Sampling(0.8), 7)
PRINTED = "\n\nHi there, friend\n\nand more\n\n\n\n\n"
LOG = """
0.00.510.261 I encoded    3 tokens in    0.010 seconds, speed:  300.000 t/s
0.00.510.262 I decoded   10 tokens in    0.500 seconds, speed:   20.000 t/s
0.00.510.263 I
0.00.510.264 I n_draft   = 3
0.00.510.265 I n_predict = 10
0.00.510.266 I n_drafted = 12
0.00.510.267 I n_accept  = 6
0.00.510.268 I accept    = 50.000%
"""


@pytest.fixture(autouse=True)
def own_sigterm() -> Iterator[None]:
    """The script takes SIGTERM for Ctrl-C from its start to its end."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class FakePeer(Peer):
    """Notes what it is asked; fails on the reply of that number, or when it is opened."""

    def __init__(
        self, name: str, log: list[str], fails_at: int = 0, broken: str = "", tok_s: float = 10.0
    ) -> None:
        self.name = name
        self._log, self._fails_at, self._broken, self._tok_s = log, fails_at, broken, tok_s
        self._asked = 0

    def open(self) -> None:
        if self._broken:
            raise PeerError(self._broken)

    def ask(self, request: Request) -> Reply:
        self._asked += 1
        if self._asked == self._fails_at:
            raise PeerError("It fell over.")
        self._log.append(f"{self.name} {request.seed}")
        return Reply("yes", 8, self._tok_s, 4, 8, 4)

    def close(self) -> None:
        self._log.append(f"{self.name} closed")


def question(prompt: str, repetition: int) -> compare_peers.Question:
    return compare_peers.Question(prompt, "chat", prompt, (1,), 0.0, repetition, repetition)


def measure(runs: Runs, peers: Iterable[Peer], seconds: float = math.inf) -> bool:
    asked = compare_peers.Asked(
        tuple(question(prompt, n) for prompt in "ab" for n in (1, 2)), REQUEST, REQUEST
    )
    opened = Open(list(peers), lambda arm, why: runs.add("failure", arm, sentence=why))
    settings = argparse.Namespace(seconds=seconds, tokens=8)
    return compare_peers.measure_speed(opened, asked, runs, settings)


def test_arms_take_turns_there_and_back_after_a_warm_up(tmp_path: Path) -> None:
    log: list[str] = []
    runs = Runs(tmp_path / "runs.jsonl", {"threads": 1})
    assert measure(runs, [FakePeer("x", log), FakePeer("y", log)])
    turns = ["x 7", "x 1", "y 7", "y 1", "y 2", "x 2", "x 1", "y 1", "y 2", "x 2"]
    assert log == turns


def test_a_run_that_is_broken_off_goes_on(tmp_path: Path) -> None:
    file, log = tmp_path / "runs.jsonl", []
    assert not measure(Runs(file, {"threads": 1}), [FakePeer("x", log)], seconds=-1)
    assert log == []
    assert measure(Runs(file, {"threads": 1}), [FakePeer("x", log)])
    assert measure(Runs(file, {"threads": 1}), [FakePeer("x", log), FakePeer("y", log)])
    assert [line for line in log if line.startswith("x")] == ["x 7", "x 1", "x 2", "x 1", "x 2"]
    assert measure(Runs(file, {"threads": 2}), [FakePeer("z", log)])
    assert len(list(Runs(file, {"threads": 2}))) == 4


def test_an_arm_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    runs, log = Runs(tmp_path / "runs.jsonl", {"threads": 1}), []
    shaky = FakePeer("shaky", log, fails_at=3)
    absent = FakePeer("absent", log, broken="It is not installed.")
    assert measure(runs, [shaky, absent, FakePeer("sound", log)])
    assert len([line for line in log if line.startswith("sound")]) == 5
    notes = report.markdown(runs, runs, {}, {}, ["left out"])[-3:]
    assert notes[0] == "- left out"
    assert set(notes[1:]) == {
        "- shaky failed later on: It fell over.",
        "- absent failed: It is not installed.",
    }


def test_the_table_by_hand(tmp_path: Path) -> None:
    runs, log = Runs(tmp_path / "runs.jsonl", {"threads": 1}), []
    rates = {OURS: 30.0, "specllama, plain": 15.0, BASELINE: 12.0, "llama-server, ngram-mod": 20.0}
    measure(runs, [FakePeer(name, log, tok_s=value) for name, value in rates.items()])
    text = "\n".join(report.markdown(runs, runs, {}, {"cpu": "Abacus"}, []))
    assert f"| {OURS} | 30.0 | 2.00x |  | 50% | 2.00 | 32 |" in text
    assert "| llama-server, ngram-mod | 20.0 | 1.67x | 1.50x | 50% | 2.00 | 32 |" in text
    assert f"| {BASELINE} | 12.0 |  | 2.50x |" in text
    assert "beside the best native run (llama-server, ngram-mod): 1.50x." in text
    assert "cpu Abacus" in text and "Temperature 0" in text


def test_a_wrong_law_is_told(tmp_path: Path) -> None:
    runs, law = Runs(tmp_path / "runs.jsonl", {"threads": 1}), {" a": 0.5, " b": 0.5}
    for n in range(100):
        runs.add("law", "right", str(n), begins=" " + "ab"[n % 2])
        runs.add("law", "wrong", str(n), begins=" a")
    text = "\n".join(report.markdown(runs, runs, law, {}, []))
    assert "| right | 100 | 1 | yes |" in text
    assert "| wrong | 100 | 1.5e-23 | no |" in text


def test_too_few_replies_test_no_law(tmp_path: Path) -> None:
    """All cells together fit any law; what the law knows nothing of is wrong even so."""
    runs, law = Runs(tmp_path / "runs.jsonl", {"threads": 1}), {" a": 0.5, " b": 0.5}
    for n in range(6):
        runs.add("law", "few", str(n), begins=" a")
        runs.add("law", "foreign", str(n), begins=" c")
    text = "\n".join(report.markdown(runs, runs, law, {}, []))
    assert "| few | 6 |  | too few |" in text
    assert "| foreign | 6 | 0 | no |" in text


@pytest.mark.parametrize(
    ("temperature", "told"),
    [
        ("0.0", "best native run (llama-speculative): 0.75x."),
        ("0.8", f"best native run with the target's law ({BASELINE}): 2.50x."),
    ],
)
def test_who_changes_the_law_is_not_the_best_native_run(
    tmp_path: Path, temperature: str, told: str
) -> None:
    runs, law = Runs(tmp_path / "runs.jsonl", {"threads": 1}), {" a": 0.5, " b": 0.5}
    line = {"n": 8, "rounds": 4, "drafted": 8, "accepted": 4, "load": 0.0, "date": "2026-11-29"}
    for arm, tok_s in {OURS: 30.0, BASELINE: 12.0, "llama-speculative": 40.0}.items():
        runs.add("speed", arm, "p", temperature, "1", **line, tok_s=tok_s)
    for n in range(100):
        runs.add("law", "llama-speculative", str(n), begins=" a")
    assert told in "\n".join(report.markdown(runs, runs, law, {}, []))


def test_what_a_program_prints_is_read() -> None:
    reply = read_reply(PRINTED, LOG, REQUEST)
    assert reply == Reply(", friend\n\nand more", 10, 20.0, 4, 12, 6)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (LOG.replace("encoded    3", "encoded    4"), "it read 4 tokens, not 3"),
        ("Segmentation fault", "its output lacks prompt, n, seconds, drafted, accepted"),
    ],
)
def test_a_program_that_did_something_else_is_noticed(log: str, sentence: str) -> None:
    with pytest.raises(PeerError, match=sentence):
        read_reply(PRINTED, log, REQUEST)


def test_rates_count_whole_rounds_after_the_first() -> None:
    assert rate([(5, 1.0), (2, 2.0), (4, 3.0)]) == 3.0
    assert rate([(5, 1.0)]) is None


WORKER = """
import json, sys
json.loads(sys.stdin.readline())
print(json.dumps(json.loads(sys.argv[1])), flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    if wanted["n"] == 0: sys.exit(3)
    print(json.dumps({"text": str(wanted["ids"]), "blocks": [[1, 0.0], [wanted["n"], 2.0]]}), flush=True)
"""  # noqa: E501


def child(tmp_path: Path, greeting: dict[str, Any]) -> Child:
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("sys.argv[1]", repr(json.dumps(greeting))))
    worker = Worker(Path(sys.executable), str(script), Files(tmp_path / "t.gguf", None, 1))
    return Child("child", worker, "lookup")


def test_a_child_answers_and_its_end_is_a_sentence(tmp_path: Path) -> None:
    peer = child(tmp_path, {})
    peer.open()
    assert peer.ask(REQUEST) == Reply("[1, 2, 3]", 9, 4.0)
    with pytest.raises(PeerError, match="its process ended with 3"):
        peer.ask(Request("", (1,), 0, Sampling(0.0), 1))
    peer.close()


def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="ImportError: no torch"):
        child(tmp_path, {"error": "ImportError: no torch"}).open()


def test_what_is_asked_is_checked_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = Files(tmp_path / "target.gguf", None, 1)
    files.target.write_bytes(b"GGUF")
    args = argparse.Namespace(tokens=8, threads=1, files=files, part="all", runs=tmp_path / "runs")

    def wrong(*_: object) -> None:
        raise UsageError("Cannot read nofile.")

    monkeypatch.setattr(compare_peers, "_arguments", lambda: args)
    monkeypatch.setattr(compare_peers, "questions", wrong)
    monkeypatch.setattr(compare_peers, "_peers", lambda *_: pytest.fail("it compiles"))
    with pytest.raises(UsageError, match="Cannot read nofile"):
        compare_peers.main()


FILES = Files(Path("target.gguf"), Path("draft.gguf"), 1)


def setting(tmp_path: Path, text: str, *, timed: bool = True, **changes: Any) -> dict[str, Any]:
    """What identifies a run with this one prompt, in a checkout or in none."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": text}))
    for file in (tmp_path / "target.gguf", tmp_path / "draft.gguf"):
        file.write_bytes(b"GGUF")
    files = Files(tmp_path / "target.gguf", tmp_path / "draft.gguf", 1)
    settings = {"files": files, "prompts": prompts, "per_kind": 1, "tokens": 8, "threads": 1}
    return compare_peers._setting(argparse.Namespace(**settings | changes), timed=timed)


def test_replies_to_another_prompt_of_the_same_number_are_measured_anew(tmp_path: Path) -> None:
    """Ids are line numbers where a file gives none."""
    file, log = tmp_path / "runs.jsonl", []
    first, second = setting(tmp_path, "What is rain?"), setting(tmp_path, "What is snow?")
    measure(Runs(file, first), [FakePeer("x", log)])
    assert Runs(file, first).others("speed") == ""
    again = Runs(file, second)
    assert again.others("speed").endswith("do not count here: they differ in prompts.")
    assert list(again) == []
    assert measure(again, [FakePeer("x", log)])
    assert len([line for line in log if line.startswith("x")]) == 10


def test_replies_of_another_commit_or_sampling_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    for timed, part in ((True, "speed"), (False, "law")):
        monkeypatch.setattr(compare_peers, "commit", lambda: "abc")
        runs = Runs(file, setting(tmp_path, "Hi", timed=timed))
        runs.add(part, "x", "1")
        monkeypatch.setattr(compare_peers, "commit", lambda: "def")
        wanted = setting(tmp_path, "Hi", timed=timed)
        other = Runs(file, wanted)
        assert list(other) == []
        assert other.others(part) == (
            f"1 earlier {part} replies in {file} do not count here: they differ in commit."
        )
        assert {"sampling", "prompts"} <= wanted.keys()


def test_a_commit_is_told_with_what_was_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"rev-parse": b"abc\n", "diff": b""}
    monkeypatch.setattr(compare_peers, "_git", lambda *arguments: told[arguments[0]])
    version = compare_peers.commit.__wrapped__
    assert version() == "abc"
    told["diff"] = b"+x"
    assert version().startswith("abc+")
    told["rev-parse"] = b""
    assert version() == ""


@pytest.mark.parametrize("content", [b'{"prompt": "Hi"}', b"GGUF\xff", b'{"key": ["speed"', b"[1]"])
def test_lines_are_added_to_no_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"prompts\.jsonl"):
        Runs(file, {"threads": 1})
    assert file.read_bytes() == content


def test_replies_may_hold_any_line_separator(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.jsonl", {"threads": 1})
    runs.add("speed", "x", text="a\u2028b\x85c")
    (line,) = Runs(tmp_path / "runs.jsonl", {"threads": 1})
    assert line["text"] == "a\u2028b\x85c"


def arms(words: Iterable[str] = (), programs: Path | None = Path(), **more: Any) -> list[Peer]:
    found = Arms(Files("t", "d", 1, **more), words, lambda: programs, lambda: None, Path())
    return found.all()


def test_native_programs_have_a_turn_without_flash_attention() -> None:
    names = [peer.name for peer in arms() if "llama-s" in peer.name and "-fa" in peer.name]
    assert names == [
        "llama-server, plain, -fa off",
        "llama-server, draft-simple 3, -fa off",
        "llama-speculative-simple 3, -fa off",
        "llama-speculative, -fa off",
    ]
    assert [peer.name for peer in arms(["-fa on"])] == ["llama-cpp-python, plain, -fa on"]
    assert not any("-fa" in peer.name for peer in arms(flash_attn="on"))


@pytest.mark.parametrize(
    ("mode", "name", "flags"),
    [
        ("auto", BASELINE, []),
        ("auto", f"{BASELINE}, -fa off", ["-fa", "off"]),
        ("on", BASELINE, ["-fa", "on"]),
        ("auto", "llama-speculative-simple 3, -fa off", ["-fa", "off"]),
    ],
)
def test_programs_are_told_of_flash_attention(
    mode: str, name: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plain server with a flag more is still plain."""
    started: list[list[str]] = []

    def start(command: list[Any], **_: Any) -> Any:
        started.append(command)
        raise OSError

    monkeypatch.setattr(native.subprocess, "Popen", start)
    monkeypatch.setattr(native.subprocess, "run", start)
    monkeypatch.setattr(native, "log_folder", lambda: tmp_path)
    (peer,) = (peer for peer in arms(flash_attn=mode) if peer.name == name)
    assert not isinstance(peer, Server) or not peer.speculates
    with pytest.raises(OSError):
        peer._start() if isinstance(peer, Server) else peer.ask(REQUEST)
    command = started[0]
    assert command[command.index("-fa") :][:2] == flags if flags else "-fa" not in command


def test_the_fastest_native_run_may_be_one_without_flash_attention(tmp_path: Path) -> None:
    runs, log = Runs(tmp_path / "runs.jsonl", {"threads": 1}), []
    rates = {OURS: 30.0, BASELINE: 12.0, f"{BASELINE}, -fa off": 20.0}
    measure(runs, [FakePeer(name, log, tok_s=value) for name, value in rates.items()])
    text = "\n".join(report.markdown(runs, runs, {}, {}, []))
    assert f"beside the best native run ({BASELINE}, -fa off): 1.50x." in text
    assert f"| {BASELINE}, -fa off | 20.0 | 1.67x | 1.50x |" in text


def peers_of(words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Names of the arms, and what was built or looked for."""
    sought: list[str] = []
    monkeypatch.setattr(native, "build", lambda: sought.append("native") or Path("bin"))
    monkeypatch.setattr(compare_peers, "first_python", lambda _: sought.append("torch"))
    args = argparse.Namespace(files=FILES, programs=None, torch_python=None, arms=words)
    return [peer.name for peer in compare_peers._peers(args, [])], sought


@pytest.mark.parametrize(
    ("words", "sought"),
    [
        ("specllama", []),
        ("llama-cpp-python", []),
        ("llama-server", ["native"]),
        ("specllama,transformers", ["torch"]),
        ("", ["native", "torch"]),
    ],
)
def test_only_what_is_asked_for_is_built(
    words: str, sought: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, found = peers_of(words, monkeypatch)
    assert found == sought
    assert names


def test_arms_that_are_not_there_are_told_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"No arm has vllm in its name\. There are: specllama"):
        peers_of("vllm", monkeypatch)


def test_help_tells_the_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_peers.py", "--help"])
    with pytest.raises(SystemExit):
        compare_peers._arguments()
    told = " ".join(capsys.readouterr().out.split())
    for default in ("smollm2-135m", "64", "0,0.8", "2", "200", "auto", "all", "never"):
        assert f"(default: {default})" in told
