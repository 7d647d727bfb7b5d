"""Run in a child process: one decode of several tokens through repacked weights.

Exits normally where that works; a CPU whose AMX is not enabled kills this process instead of the
user's.
"""

from __future__ import annotations

from specllama.hub.builtin import draft_path
from specllama.llama.context import Context
from specllama.llama.model import Model


def main() -> None:
    """Decode four tokens with the draft model that ships with specllama."""
    with Model(draft_path(), gpu_layers=0, repack=True) as model:
        Context(model, n_ctx=256, n_batch=64).close()


if __name__ == "__main__":
    main()
