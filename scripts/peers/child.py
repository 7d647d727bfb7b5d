"""Peers that are Python libraries, each in a process of its own: one may not take ours with it."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.protocol import Files, Peer, PeerError, Reply, Request, rate

HERE = Path(__file__).parent
Ask = Callable[[dict[str, Any]], dict[str, Any]]


class Child(Peer):
    """A worker script that answers one line of JSON with one line of JSON.

    Args:
        python: the interpreter whose packages it needs.
        worker: name of the script beside this file.
        mode: which of the worker's ways of decoding.
    """

    def __init__(self, name: str, python: Path, worker: str, mode: str, files: Files) -> None:
        self.name = name
        self.speculates = mode != "plain"
        self._command = [str(python), str(HERE / worker), mode]
        self._files = files
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        files = asdict(self._files)
        settings = {key: str(v) if isinstance(v, Path) else v for key, v in files.items()}
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            self._exchange(settings)
        except PeerError:
            self.close()
            raise

    def _exchange(self, data: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(data) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:
            raise PeerError(f"its process is gone: {error}.") from error
        if not line:
            raise PeerError(f"its process ended with {process.wait()}.")
        answer = dict(json.loads(line))
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def ask(self, request: Request) -> Reply:
        wanted = {
            "ids": list(request.ids),
            "n": request.n,
            "seed": request.seed,
            **request.sampling.to_dict(),
        }
        told = self._exchange(wanted)
        blocks = told["blocks"]
        return Reply(
            text=told["text"],
            n=sum(tokens for tokens, _ in blocks),
            tok_s=rate(blocks),
            rounds=told.get("rounds"),
            drafted=told.get("drafted"),
            accepted=told.get("accepted"),
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve(start: Callable[[str, dict[str, Any]], Ask]) -> None:
    """A worker's main loop: settings first, then requests until the other side is gone."""
    sys.stdout, answers = sys.stderr, sys.stdout

    def answer(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        ask = start(sys.argv[1], json.loads(sys.stdin.readline()))
        answer({})
        for line in sys.stdin:
            answer(ask(json.loads(line)))
    except KeyboardInterrupt:
        pass
    except Exception as error:  # whatever it is, the other side reports it
        answer({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def has(python: Path, packages: Sequence[str]) -> bool:
    """Whether an interpreter can import packages."""
    probe = [str(python), "-c", f"import {', '.join(packages)}"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False
