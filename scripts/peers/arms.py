"""All arms, by family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peers.child import Child, Worker, has
from peers.native import Program, Server
from peers.ours import Engine, Ours
from peers.protocol import Files, Peer, PeerError
from specllama.verification import UNSEEDED

BASELINE = "llama-server, plain"
"""What "plain llama.cpp" means: the same library, no drafts, none of this project's code."""

OURS = "specllama"
"""The arm that is compared with every other one: default settings, no seed given."""

NATIVE_LENGTHS = (3, 6)
"""Drafted tokens: llama.cpp's default, and twice that (it has no scheduler that would choose)."""


Family = Callable[[Path], list[Peer]]
"""Makes a family's arms of where its programs or its interpreter are."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms that are wanted.

    Attributes:
        words: an arm is wanted whose name has one of them; all are where there is none.
        programs: finds the folder of llama.cpp's programs; None leaves its arms out.
        torch_python: finds an interpreter with torch and transformers, None likewise.
        python: the interpreter with llama-cpp-python.
    """

    files: Files
    words: Sequence[str]
    programs: Callable[[], Path | None]
    torch_python: Callable[[], Path | None]
    python: Path

    def all(self) -> list[Peer]:
        """Every wanted arm at hand."""
        return [
            *self._wanted(self._ours()),
            *self._found(self._native, self.programs),
            *self._found(self._llama_cpp_python, lambda: self.python),
            *self._found(self._transformers, self.torch_python),
        ]

    def names(self) -> str:
        """What every wanted arm is called, whether it is at hand or not."""
        nowhere = replace(self, programs=Path, torch_python=Path, python=Path())
        return "; ".join(peer.name for peer in nowhere.all())

    def _wanted(self, peers: Sequence[Peer]) -> list[Peer]:
        words = self.words
        return [p for p in peers if not words or any(word in p.name for word in words)]

    def _found(self, family: Family, find: Callable[[], Path | None]) -> list[Peer]:
        """A family's wanted arms; what they need is looked for only where there are some."""
        if not self._wanted(family(Path())):
            return []
        place = find()
        return [] if place is None else self._wanted(family(place))

    def _ours(self) -> list[Peer]:
        engine = Engine(self.files)
        peers: list[Peer] = [Ours("specllama, plain", engine, drafter="none")]
        if self.files.draft is not None:
            # a seed makes runs repeatable; what people get who give none is the sampling rule
            peers.append(Ours(OURS, engine, verify=UNSEEDED))
            peers.append(Ours("specllama, seeded", engine, verify="coupled"))
        peers.append(Ours("specllama, no draft model", engine, drafter="suffix+text"))
        return peers

    def _native(self, programs: Path) -> list[Peer]:
        """llama.cpp's: it chooses flash attention by itself, which may not be what is fastest."""
        server, files = programs / "llama-server", self.files
        ngram = ["--spec-type", "ngram-mod"]
        peers: list[Peer] = [
            Server(BASELINE, server, files, ()),
            Server("llama-server, ngram-mod", server, files, ngram, fresh=True),
        ]
        if files.draft is not None:
            for n in NATIVE_LENGTHS:
                peers += _draft_simple(programs, files, n)
            peers.append(_speculative(programs, files))
        return [*peers, *self._native_without_flash(programs)]

    def _native_without_flash(self, programs: Path) -> list[Peer]:
        if self.files.flash_attn != "auto":
            return []
        files, more = replace(self.files, flash_attn="off"), ", -fa off"
        peers: list[Peer] = [Server(BASELINE + more, programs / "llama-server", files, ())]
        if files.draft is not None:
            peers += _draft_simple(programs, files, NATIVE_LENGTHS[0], more)
            peers.append(_speculative(programs, files, more))
        return peers

    def _llama_cpp_python(self, python: Path) -> list[Peer]:
        """Left to itself it decodes without flash attention, so that its second arm has it on."""
        family, script = "llama-cpp-python", "llama_cpp_worker.py"
        modes = {"plain": "plain", "lookup": "prompt look-up"}
        peers = _children(family, Worker(python, script, self.files), modes)
        if self.files.flash_attn == "auto":
            worker = Worker(python, script, replace(self.files, flash_attn="on"))
            peers += _children(family, worker, {"plain": "plain, -fa on"})
        return peers

    def _transformers(self, python: Path) -> list[Peer]:
        modes = {"plain": "plain", "lookup": "prompt look-up"}
        if self.files.draft is not None:
            modes["assisted"] = "assisted"
        worker = Worker(python, "transformers_worker.py", self.files)
        return _children("transformers", worker, modes)


def _draft_simple(programs: Path, files: Files, n: int, more: str = "") -> list[Peer]:
    """Both programs that draft chains of one length."""
    spec = ["--spec-type", "draft-simple", "--spec-draft-n-max", str(n)]
    simple = "llama-speculative-simple"
    return [
        Server(f"llama-server, draft-simple {n}{more}", programs / "llama-server", files, spec),
        Program(f"{simple} {n}{more}", programs / simple, files, spec),
    ]


def _speculative(programs: Path, files: Files, more: str = "") -> Peer:
    name = "llama-speculative"
    return Program(name + more, programs / name, files, ["--spec-type", "draft-simple"])


def _children(family: str, worker: Worker, modes: dict[str, str]) -> list[Peer]:
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
