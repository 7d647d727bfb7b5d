"""Devices, splits and exact mode on a machine with two cards: does each flag do what it says?

    python scripts/gpu_devices.py --source SMOL.gguf --work /dev/shm --out results

Widens the source to an 8B-cost target, runs `specllama generate` with every way of placing target
and draft, and notes the most memory each card held. Then exact mode: behind a long prompt, and four
answers at a time, the text must be that of plain decoding, whatever was drafted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent
PLACES = (
    "",
    "--tensor-split 1,0",
    "--tensor-split 0,1",
    "--tensor-split 1,1",
    "--tensor-split 3,1",
    "--main-gpu 1",
    "--device CUDA0 --draft-device CUDA1",
    "--device CUDA1 --draft-device CUDA0",
    "--device CUDA1 -ngld 0",
)
EXACT = (
    "--drafter none",
    "",
    "--drafter model --no-adaptive --draft-max 5",
    "--drafter suffix",
    "--device CUDA1 --draft-device CUDA0",
)
ASKED = "Name the three laws of robotics."
LONG_ASKED = "What did the keeper count, and why?"
LONG = "The lighthouse keeper counted the ships that passed at night and wrote them down. " * 90
QUESTIONS = (
    "What is a lighthouse?",
    "Write a short poem about rain.",
    "List five fruits.",
    "Explain why the sky is blue.",
    "Say hello in French.",
    "What is two plus two?",
)
_LIMIT_S = 90.0


def main() -> None:
    """Measure and write `devices.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="a small llama GGUF")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    target = args.work / "widened-8b.gguf"
    widen = [sys.executable, str(SCRIPTS / "widen_gguf.py"), str(args.source), str(target)]
    subprocess.run([*widen, "--as", "8b"], check=True)
    models = ["-m", str(target), "-md", args.draft, "-t", "4"]
    found = {
        "places": places(models),
        "long prompt": long_prompt(args.work, models),
        "four at a time, as alone": company(args.work, models),
    }
    (args.out / "devices.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def places(models: list[str]) -> dict[str, Any]:
    """Where each way of placing the models puts them."""
    asked = [*models, "-c", "1024", "-n", "64", "--temp", "0", ASKED]
    return {flags: told(f"place {flags}", [*flags.split(), *asked]) for flags in PLACES}


def long_prompt(work: Path, models: list[str]) -> dict[str, Any]:
    """Whether exact mode says the same behind a long prompt, whatever is drafted."""
    file = work / "long.txt"
    file.write_text(LONG, encoding="utf-8")
    asked = [*models, "--exact", "-c", "4096", "-n", "160", "-f", str(file), LONG_ASKED]
    found = {}
    for sampling in ("--temp 0", "--temp 0.8 --seed 7"):
        replies = {
            flags: told(f"long {sampling} {flags}", [*f"{flags} {sampling}".split(), *asked])
            for flags in EXACT
        }
        found[sampling] = same(replies)
    return found


def company(work: Path, models: list[str]) -> dict[str, bool]:
    """Whether exact mode answers four at a time as it does one after the other."""
    alone = batch(work, models, "--drafter none --parallel 1")
    found = {flags: batch(work, models, flags) == alone for flags in EXACT[:3]}
    print("four at a time, as alone", found)
    return found


def told(label: str, flags: list[str]) -> dict[str, Any]:
    """One reply, printed but for its text."""
    reply = generate(flags)
    print(label, {key: value for key, value in reply.items() if key != "text"}, flush=True)
    return reply


def generate(flags: list[str]) -> dict[str, Any]:
    """One reply, its speed, and the most memory that each card held meanwhile."""
    command = [sys.executable, "-m", "specllama", "generate", "--json", *flags]
    with Memory() as memory:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        return {"failed": done.stderr[-400:], "MiB": memory.most}
    reply = json.loads(done.stdout)
    return {
        "text": reply["text"],
        "tok/s": round(reply["timings"]["decode_tok_s"], 1),
        "prompt": reply["usage"]["prompt_tokens"],
        "accepted": reply["spec"]["accepted"],
        "MiB": memory.most,
        "warnings": reply.get("warnings", []),
    }


def same(replies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether all texts are equal, and how much was drafted in each."""
    texts = {one.get("text") for one in replies.values()}
    accepted = {flags: one.get("accepted", one.get("failed")) for flags, one in replies.items()}
    return {"same": len(texts) == 1 and None not in texts, "accepted": accepted}


def batch(work: Path, models: list[str], flags: str) -> list[str]:
    """Answers to all questions, in exact mode; [what went wrong] if that failed."""
    asked, answers = work / "asked.jsonl", work / "answers.jsonl"
    asked.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in QUESTIONS), encoding="utf-8"
    )
    answers.unlink(missing_ok=True)
    command = [sys.executable, "-m", "specllama", "generate", "--batch", str(asked), "-o"]
    command += [str(answers), "--exact", "-c", "1024", "-n", "96", "--temp", "0.8", "--seed", "5"]
    done = subprocess.run(
        [*command, *flags.split(), *models], capture_output=True, text=True, timeout=2 * _LIMIT_S
    )
    if done.returncode != 0:
        return [done.stderr[-400:]]
    return [json.loads(line)["text"] for line in answers.read_text("utf-8").splitlines()]


class Memory:
    """The most MiB that each card held while this was open."""

    def __init__(self) -> None:
        self.most: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._over.is_set():
            done = subprocess.run(query, capture_output=True, text=True, check=False)
            now = [int(line) for line in done.stdout.split()] if done.returncode == 0 else []
            self.most = [max(pair) for pair in zip(now, self.most or now, strict=True)]
            time.sleep(0.2)


if __name__ == "__main__":
    main()
