"""specllama as a peer: its figures are the engine's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers.ours import Engine, Ours
from peers.protocol import Files, Request, Sampling

from tests.cli.fakes import FakeDecoder, Reply


def test_rates_are_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is held back comes all at once, which is no measure of how fast it was."""
    decoder = FakeDecoder([Reply(tokens=("a", "b", "c"), drafted=frozenset({1}), tok_s=25.0)])
    monkeypatch.setattr(FakeDecoder, "forget", lambda _: None, raising=False)
    engine = Engine(Files(Path("target.gguf"), None, threads=1))
    monkeypatch.setattr(engine, "acquire", lambda: decoder)
    monkeypatch.setattr(engine, "release", lambda: None)
    peer = Ours("ours", engine)
    peer.open()
    reply = peer.ask(Request("a b", (1, 2), 8, Sampling(0.0), seed=1))
    assert (reply.text, reply.n, reply.tok_s) == ("abc", 3, 25.0)
    assert (reply.rounds, reply.accepted) == (2, 1) and peer.told is not None
    peer.close()
