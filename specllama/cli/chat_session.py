"""A conversation: its turns, its settings, its figures. Nothing here prints or reads keys.

Turns are added when their reply is complete, so whatever is raised meanwhile leaves the
conversation as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specllama.cli.generate_stats import Totals
from specllama.cli.model_flags import checked_text
from specllama.errors import ContextFull, UsageError
from specllama.options import GenerationParams
from specllama.results import Generation

if TYPE_CHECKING:
    from specllama.cli.generate_stream import Start
    from specllama.decoder import SpeculativeDecoder
    from specllama.text.chat import Message

Play = Callable[["Start"], Generation]
"""Runs a stream to its end and shows it (`generate_stream.follow` with a view)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer; `tokens` are the answer's ids, where it was generated here."""

    user: str
    reply: str
    tokens: tuple[int, ...] | None = None
    stopped: bool = False


@dataclass(slots=True)
class ChatSession:
    """The state of one chat."""

    decoder: SpeculativeDecoder
    params: GenerationParams
    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    attachments: list[str] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    _redone: int = 0

    def send(self, text: str, play: Play) -> Generation:
        """Ask `text`, with what was attached before it.

        Raises:
            ContextFull: no room for the question, or for the end of its answer. As after any other
                error, the turn is not part of the conversation.
        """
        before = len(self.turns)
        generation = self._ask("\n\n".join([*self.attachments, text]), self.params, play)
        if len(self.turns) > before:
            self.attachments.clear()
        return generation

    def regenerate(self, play: Play) -> Generation:
        """Answer the last question anew; with a fixed seed, with the next one."""
        if not self.turns:
            raise UsageError("There is no reply to redo.")
        self._redone += 1
        params = self.params
        if params.seed is not None:
            params = replace(params, seed=(params.seed + self._redone) % 2**64)
        last = self.turns.pop()
        before = len(self.turns)
        try:
            return self._ask(last.user, params, play)
        finally:
            if len(self.turns) == before:
                self.turns.append(last)

    def undo(self) -> str:
        """Drop the file that was attached last, else the last question and its answer.

        Returns:
            What was dropped, the question or the file's text.
        """
        if self.attachments:
            return self.attachments.pop()
        if not self.turns:
            raise UsageError("There is nothing to undo.")
        return self.turns.pop().user

    def attach(self, text: str) -> int:
        """Put a text before the next question; returns its length in tokens.

        Raises:
            ContextFull: no room for it.
        """
        tokens = self.decoder.count_tokens(text)
        needed = self.context_used() + self.attached() + tokens
        if needed >= self.decoder.n_ctx:
            raise ContextFull(
                f"A text of {tokens} tokens does not fit into the context of {self.decoder.n_ctx}.",
                needed=needed,
            )
        self.attachments.append(text)
        return tokens

    def attached(self) -> int:
        """Tokens of what waits for the next question."""
        return sum(map(self.decoder.count_tokens, self.attachments))

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()
        self.attachments.clear()

    def messages(self, question: str | None = None) -> list[Message]:
        """The conversation, and a question that follows it, as the decoder takes it."""
        from specllama.text.chat import Message

        messages = [Message("system", self.system)] if self.system else []
        for turn in self.turns:
            messages.append(Message("user", turn.user))
            messages.append(Message("assistant", turn.reply, turn.tokens))
        if question is not None:
            messages.append(Message("user", question))
        return messages

    def context_used(self) -> int:
        """Tokens of the conversation so far."""
        return self.decoder.count_chat_tokens(self.messages()) if self.turns or self.system else 0

    # Drafting

    @property
    def drafting(self) -> bool:
        """Whether drafts are allowed at all."""
        return bool(self.params.drafters()) and self.params.draft_max > 0

    def set_drafting(self, drafter: str, draft_max: int | None = None) -> None:
        """Switch drafters, and the draft length where one is given."""
        length = self.params.draft_max if draft_max is None else draft_max
        self.params = replace(self.params, drafter=drafter, draft_max=length)

    def _drafting_setup(self) -> tuple[object, ...] | None:
        """What the speed with drafts depends on; None while drafting is off."""
        params = self.params
        setup = (self.decoder.draft_name, params.drafter, params.draft_max, params.adaptive)
        return setup if self.drafting else None

    # Files

    def dump(self) -> list[dict[str, str]]:
        """The messages as plain data."""
        return [{"role": item.role, "content": item.content} for item in self.messages()]

    def restore(self, data: object) -> None:
        """Replace the conversation by messages as `dump` gives them.

        Raises:
            UsageError: not a list of messages, or not questions and answers in turn.
        """
        messages = parse_messages(data)
        system = messages.pop(0)[1] if messages and messages[0][0] == "system" else ""
        roles = [role for role, _ in messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise UsageError("The messages are not questions and answers in turn.")
        texts = [text for _, text in messages]
        self.clear()
        self.system = system
        self.turns = [Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]

    def _ask(self, question: str, params: GenerationParams, play: Play) -> Generation:
        params = replace(params, logprobs=False)
        messages = self.messages(checked_text(question))
        generation = play(
            lambda on_prompt: self.decoder.stream_chat(messages, params, on_prompt=on_prompt)
        )
        self.totals.add(generation, self._drafting_setup())
        if generation.finish_reason == "context":
            raise ContextFull("The answer does not fit into the context.")
        stopped = generation.finish_reason == "cancelled"
        if generation.text or not stopped:
            tokens = tuple(generation.tokens)
            self.turns.append(Turn(question, generation.text, tokens, stopped))
        return generation


def parse_messages(data: object) -> list[tuple[str, str]]:
    """Role and content of each message in parsed JSON.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise UsageError("This is not a list of messages.")
    messages = []
    for item in data:
        match item:
            case {"role": "system" | "user" | "assistant" as role, "content": str(content)}:
                messages.append((str(role), checked_text(content)))
            case _:
                raise UsageError("This is not a list of messages.")
    return messages
