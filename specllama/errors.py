"""Everything specllama raises on purpose.

SpecllamaError                 one sentence on what happened, one on what to do
├── UsageError                 the request itself is wrong                      exit 2
├── ModelError                 a model file cannot be used                      exit 1
│   ├── ModelNotFound
│   ├── NotAModel              not GGUF, truncated, or without a language model head
│   └── PairMismatch           the draft's vocabulary differs from the target's
├── ContextFull                prompt or conversation longer than the context   exit 1
├── OutOfMemory                                                                 exit 1
├── HubError                   network, gated, missing, offline, no disk        exit 1
├── QueueFull                  too many requests wait for a slot of a pool      exit 1
├── PoolClosed                 a pool takes no more requests                    exit 1
└── EngineError                llama.cpp refused a call that should have worked exit 1
"""


class SpecllamaError(Exception):
    """Base of the tree. `str(error)` is the sentence people see; `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(SpecllamaError):
    """An option or argument that cannot be served as given."""

    exit_code = 2


class ModelError(SpecllamaError):
    """A model file that cannot be used."""


class ModelNotFound(ModelError):
    """No file, alias or cached repository of that name."""


class NotAModel(ModelError):
    """The file is not a complete GGUF language model."""


class PairMismatch(ModelError):
    """The draft's token ids do not mean what the target's mean."""


class ContextFull(SpecllamaError):
    """The prompt, or the conversation so far, does not fit into the context.

    Attributes:
        needed: how many tokens it has, None where they were not counted.
    """

    def __init__(self, message: str, hint: str = "", *, needed: int | None = None) -> None:
        super().__init__(message, hint)
        self.needed = needed


class OutOfMemory(SpecllamaError):
    """llama.cpp could not allocate a model or a context."""


class HubError(SpecllamaError):
    """A model could not be fetched."""


class QueueFull(SpecllamaError):
    """As many requests wait for a slot of a pool as may wait."""


class PoolClosed(SpecllamaError):
    """The pool is closed, or about to be."""


class EngineError(SpecllamaError):
    """llama.cpp refused a call; the session's caches are consistent again when this is raised."""
