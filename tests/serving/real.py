"""`specllama serve` as people start it: a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_S = 180
STOPPED_S = 30


@contextmanager
def started(home: Path, *options: str) -> Iterator[Server]:
    """A server on the built-in pair, stopped with Ctrl-C at the end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPECLLAMA_")}
    command = [sys.executable, "-m", "specllama", "serve", "--port", "0", "--json", "-t", "1"]
    log = (home / "server.log").open("w+")
    with (
        log,
        subprocess.Popen(
            [*command, *options],
            env=environment | {"SPECLLAMA_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Server(process, log.name)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(STOPPED_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


class Server:
    """A server process that is ready.

    Attributes:
        base: the URL that OpenAI clients are given.
        root: the URL of the page.
        model: the name of what it serves.
    """

    def __init__(self, process: subprocess.Popen[str], log: str) -> None:
        self.process = process
        self.log = Path(log)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith("}\n"), self.log.read_text()
        about = json.loads(line)
        self.base: str = about["url"]
        self.root = self.base.removesuffix("/v1")
        self.model: str = about["model"]
