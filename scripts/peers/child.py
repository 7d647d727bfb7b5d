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


class Worker:
    """A script that answers one line of JSON with one line of JSON; arms of a family share it.

    Args:
        python: the interpreter whose packages it needs.
        script: its name, beside this file.
    """

    def __init__(self, python: Path, script: str, files: Files) -> None:
        self._command = [str(python), str(HERE / script)]
        self._files = files
        self._users = 0
        self._process: subprocess.Popen[str] | None = None

    def acquire(self) -> None:
        """Start it for the first user.

        Raises:
            PeerError: it cannot start.
        """
        self._users += 1
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        files = asdict(self._files)
        try:
            self.exchange({key: str(v) if isinstance(v, Path) else v for key, v in files.items()})
        except PeerError:
            self.release()
            raise

    def exchange(self, data: dict[str, Any]) -> dict[str, Any]:
        """Its answer.

        Raises:
            PeerError: it reports an error, or is gone.
        """
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

    def release(self) -> None:
        """End it with its last user."""
        self._users -= 1
        if self._users == 0 and self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Child(Peer):
    """One way in which a worker decodes."""

    def __init__(self, name: str, worker: Worker, mode: str) -> None:
        self.name = name
        self.speculates = mode != "plain"
        self._worker, self._mode = worker, mode
        self._open = False

    def open(self) -> None:
        self._worker.acquire()
        self._open = True

    def ask(self, request: Request) -> Reply:
        wanted = {
            "mode": self._mode,
            "ids": list(request.ids),
            "n": request.n,
            "seed": request.seed,
            **request.sampling.to_dict(),
        }
        told = self._worker.exchange(wanted)
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
        if self._open:
            self._open = False
            self._worker.release()


def serve(start: Callable[[dict[str, Any]], Ask]) -> None:
    """A worker's main loop: settings first, then requests until the other side is gone."""
    sys.stdout, answers = sys.stderr, sys.stdout

    def answer(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        ask = start(json.loads(sys.stdin.readline()))
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
