"""All arms, by family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peers.child import Child, Worker, has
from peers.native import Program, Server
from peers.ours import Engine, Ours
from peers.protocol import Files, Peer, PeerError

BASELINE = "llama-server, plain"
"""What "plain llama.cpp" means: the same library, no drafts, none of this project's code."""

OURS = "specllama"
"""The arm that is compared with every other one: default settings, no seed given."""

NATIVE_LENGTHS = (3, 6)
"""Drafted tokens: llama.cpp's default, and twice that (it has no scheduler that would choose)."""


@dataclass(slots=True)
class Arms:
    """The arms that are wanted.

    Attributes:
        programs: folder of llama.cpp's programs; None leaves its arms out.
        torch_python: an interpreter with torch and transformers; None leaves its arms out.
        python: the interpreter with llama-cpp-python.
        notes: a sentence for each family that is left out.
    """

    files: Files
    programs: Path | None
    torch_python: Path | None
    python: Path
    notes: list[str] = field(default_factory=list)

    def all(self) -> list[Peer]:
        """Every arm at hand."""
        return [*self._ours(), *self._native(), *self._llama_cpp_python(), *self._transformers()]

    def _ours(self) -> list[Peer]:
        engine = Engine(self.files)
        peers: list[Peer] = [Ours("specllama, plain", engine, drafter="none")]
        if self.files.draft is not None:
            # a seed makes runs repeatable; what people get who give none is the sampling rule
            peers.append(Ours(OURS, engine, verify="rejection"))
            peers.append(Ours("specllama, seeded", engine, verify="coupled"))
        peers.append(Ours("specllama, no draft model", engine, drafter="suffix+text"))
        return peers

    def _native(self) -> list[Peer]:
        if self.programs is None:
            return []
        server, files = self.programs / "llama-server", self.files
        ngram = ["--spec-type", "ngram-mod"]
        peers: list[Peer] = [
            Server(BASELINE, server, files, ()),
            Server("llama-server, ngram-mod", server, files, ngram, fresh=True),
        ]
        if files.draft is None:
            return peers
        simple = self.programs / "llama-speculative-simple"
        for n in NATIVE_LENGTHS:
            spec = ["--spec-type", "draft-simple", "--spec-draft-n-max", str(n)]
            peers.append(Server(f"llama-server, draft-simple {n}", server, files, spec))
            peers.append(Program(f"llama-speculative-simple {n}", simple, files, spec))
        spec = ["--spec-type", "draft-simple"]
        peers.append(Program("llama-speculative", self.programs / "llama-speculative", files, spec))
        return peers

    def _llama_cpp_python(self) -> list[Peer]:
        return self._children("llama-cpp-python", self.python, "llama_cpp_worker.py",
                              {"plain": "plain", "lookup": "prompt look-up"})  # fmt: skip

    def _transformers(self) -> list[Peer]:
        if self.torch_python is None:
            self.notes.append(
                "transformers is left out: no interpreter with torch, transformers, gguf and "
                "accelerate (--torch-python names one)."
            )
            return []
        modes = {"plain": "plain", "lookup": "prompt look-up"}
        if self.files.draft is not None:
            modes["assisted"] = "assisted"
        return self._children("transformers", self.torch_python, "transformers_worker.py", modes)

    def _children(
        self, family: str, python: Path, script: str, modes: dict[str, str]
    ) -> list[Peer]:
        worker = Worker(python, script, self.files)
        return [Child(f"{family}, {label}", worker, mode) for mode, label in modes.items()]


def first_python(candidates: Sequence[Path]) -> Path | None:
    """The first interpreter that can run transformers' arms."""
    wanted = ("torch", "transformers", "gguf", "accelerate")
    return next((python for python in candidates if python.exists() and has(python, wanted)), None)


class Open:
    """Peers opened when they are first needed; one that cannot run is noted and left alone."""

    def __init__(self, peers: Sequence[Peer], on_failure: Callable[[str, str], None]) -> None:
        self.peers = list(peers)
        self._opened: set[str] = set()
        self._broken: set[str] = set()
        self._on_failure = on_failure

    def ready(self, peer: Peer) -> bool:
        """Whether a peer can be asked."""
        if peer.name not in self._opened | self._broken:
            try:
                peer.open()
                self._opened.add(peer.name)
            except PeerError as error:
                self.broke(peer, error)
        return peer.name not in self._broken

    def broke(self, peer: Peer, error: PeerError) -> None:
        """It failed: nobody asks it again in this run."""
        self._broken.add(peer.name)
        self._on_failure(peer.name, str(error))

    def is_open(self, peer: Peer) -> bool:
        """Whether it was opened already."""
        return peer.name in self._opened

    def close(self) -> None:
        """Close all of them."""
        for peer in self.peers:
            peer.close()
