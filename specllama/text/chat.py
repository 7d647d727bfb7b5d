"""Chat messages to the prompt a model was trained on.

Models carry their chat format as a Jinja template, which is foreign code: it runs in Jinja's
immutable sandbox, and whatever goes wrong in it becomes one of our errors.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specllama.errors import ModelError, UsageError
from specllama.text.detokenizer import adds_space_prefix, is_inside_character
from specllama.text.vocabulary import Vocabulary

Role = Literal["system", "user", "assistant"]

CHATML = """\
{% for message in messages %}
<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

PLAIN_TURNS = """\
{% for message in messages %}
{% if message['role'] != 'system' %}{{ message['role'] | capitalize + ': ' }}{% endif %}
{{ message['content'] + '\n\n' }}
{%- endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}"""

REMEMBERED_PROMPTS = 256
OTHER_TEMPLATE = "Give another with --chat-template FILE, or none with --raw."


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        tokens: the ids that a reply was generated as, without the end-of-generation token. With
            them the next prompt repeats what is in the caches; encoding the text again may not.

    Raises:
        UsageError: a role that chat templates do not know, a content that is not text, or tokens
            that are not whole numbers.
    """

    role: Role
    content: str
    tokens: tuple[int, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise UsageError(
                f"Unknown message role {self.role!r}.",
                f"Choose from: {', '.join(get_args(Role))}.",
            )
        if not isinstance(self.content, str):
            raise UsageError(f"The content of a message must be text, not {self.content!r}.")
        if self.tokens is not None:
            object.__setattr__(self, "tokens", _ids(self.tokens))


def conversation(messages: Sequence[Message]) -> list[Message]:
    """The messages, also of what can be iterated only once."""
    if not isinstance(messages, Iterable):
        raise UsageError(f"A conversation is a list of Message, not {messages!r}.")
    found = list(messages)
    wrong = [message for message in found if not isinstance(message, Message)]
    if wrong:
        raise UsageError(
            f"A conversation is a list of Message, not of {type(wrong[0]).__name__}.",
            'Write Message("user", "Hello").',
        )
    return found


class Refusal(TemplateError):
    """A template called `raise_exception`."""


class ChatTemplate:
    """A chat template, with the variables, filters and tags that models' templates rely on.

    Args:
        template: Jinja source.
        bos, eos: what `bos_token` and `eos_token` stand for in it; "" where a model has none.

    Attributes:
        is_fallback: the model has no template of its own, this is a guess that people are told of.
        stops: strings that end a reply because the format has no token for it.

    Raises:
        ModelError: the source is not a template.
    """

    def __init__(self, template: str, bos: str, eos: str) -> None:
        self.bos = bos
        self.eos = eos
        self.is_fallback = False
        self.stops: tuple[str, ...] = ()
        self.prompt_of = lru_cache(REMEMBERED_PROMPTS)(self._prompt_of)
        try:
            self._template = _environment().from_string(template)
        except TemplateSyntaxError as error:
            raise ModelError(
                f"The chat template has an error in line {error.lineno}: {error.message}",
                OTHER_TEMPLATE,
            ) from error

    @classmethod
    def of(cls, vocabulary: Vocabulary, template: str | None = None) -> ChatTemplate:
        """The given template, else the model's, else a fallback.

        The fallback is ChatML where the vocabulary has its tokens, else plain turns: the system
        text, then paragraphs "User: ..." and "Assistant: ...".
        """
        bos, eos = _text_of(vocabulary, vocabulary.bos), _text_of(vocabulary, vocabulary.eos)
        source = vocabulary.chat_template if template is None else template
        if source is not None:
            return cls(source, bos, eos)
        if _has_chatml(vocabulary):
            fallback = cls(CHATML, bos, eos)
        else:
            fallback = cls(PLAIN_TURNS, bos, eos)
            fallback.stops = ("\n\nUser:",)
        fallback.is_fallback = True
        return fallback

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as one text; by default up to where the assistant is to speak.

        Where the template has no place for system messages, their text opens the next user message.

        Raises:
            UsageError: the template refuses the conversation.
            ModelError: the template fails.
        """
        if not self.takes_system:
            messages = _merge_system(messages)
        try:
            return self._render(messages, add_generation_prompt)
        except Refusal as refusal:
            raise UsageError(
                f"The chat template refuses this conversation: {refusal.message}.", OTHER_TEMPLATE
            ) from refusal
        except Exception as error:
            raise ModelError(f"The chat template fails: {error}.", OTHER_TEMPLATE) from error

    def _prompt_of(self, earlier: tuple[Message, ...]) -> str:
        """What a reply was generated from: `render`, remembered.

        A chat asks for the same prompts every turn; rendering them anew is quadratic in turns.
        """
        return self.render(earlier)

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message shows in the text; some templates refuse it, some drop it."""
        probe = "specllama"
        try:
            text = self._render([Message("system", probe), Message("user", "")], True)
        except (
            Exception
        ):  # whatever is wrong shows again, and is reported, without the system message
            return False
        return probe in text

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self._template.render(
            messages=[{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos,
            eos_token=self.eos,
            tools=None,
            documents=None,
        )


def chat_prompt(
    vocabulary: Vocabulary,
    messages: Sequence[Message],
    template: ChatTemplate | None = None,
) -> list[int]:
    """Ids of a conversation up to where the assistant is to speak.

    They are the ids of the rendered text, encoded in parts: a part ends where a reply with tokens
    begins, and these are taken over one by one as far as their bytes are the rendered text's. So
    a prompt begins with the ids of the previous turn's prompt and reply, and the caches keep them.
    Where a template rewrites the past (drops a reply's reasoning, say), that holds up to there.

    Raises:
        UsageError, ModelError: see `ChatTemplate.render`.
    """
    template = ChatTemplate.of(vocabulary) if template is None else template
    encoder = _Encoder(vocabulary, template.render(messages), template.bos)
    for index, (earlier, message) in enumerate(pairwise(messages), 1):
        if earlier.role == "user" and message.tokens is not None:
            encoder.take_reply(template.prompt_of(tuple(messages[:index])), message.tokens)
    return encoder.finish()


class _Encoder:
    """Encodes a rendered conversation part by part, from its start to its end."""

    def __init__(self, vocabulary: Vocabulary, text: str, bos: str) -> None:
        self._vocabulary = vocabulary
        self._adds_space = adds_space_prefix(vocabulary)
        self._add_bos = vocabulary.add_bos and not (bos and text.startswith(bos))
        self._raw = _bytes_of(text)
        self._done = 0
        self._ids: list[int] = []

    def take_reply(self, prompt: str, tokens: Sequence[int]) -> None:
        """End a part where the reply began, then keep its tokens while they say the same."""
        before = _bytes_of(prompt)
        if len(before) < self._done or not self._raw.startswith(before):
            return
        self._encode_up_to(len(before))
        kept, end = _same_text(self._vocabulary, tokens, self._raw, len(before))
        self._ids += tokens[:kept]
        self._done = end

    def finish(self) -> list[int]:
        self._encode_up_to(len(self._raw))
        return self._ids

    def _encode_up_to(self, end: int) -> None:
        text = self._raw[self._done : end].decode("utf-8", "surrogatepass")
        if not self._ids:
            self._ids = self._vocabulary.tokenize(text, special=True, add_bos=self._add_bos)
        elif text:
            self._ids += self._continue_with(text)
        self._done = end

    def _continue_with(self, text: str) -> list[int]:
        """Ids of a text in mid-sequence, where no space may be put before it."""
        if self._adds_space:
            # A line feed takes that space, and no SentencePiece token spans it and what follows.
            anchor = self._encode("\n")
            ids = self._encode("\n" + text)
            if ids[: len(anchor)] == anchor:
                return ids[len(anchor) :]
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, special=True, add_bos=False)


def _ids(tokens: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, tokens))
    except TypeError as error:
        raise UsageError(f"The tokens of a message are whole numbers ({error}).") from error


def _same_text(
    vocabulary: Vocabulary, tokens: Sequence[int], raw: bytes, start: int
) -> tuple[int, int]:
    """How many tokens, in whole characters, `raw` repeats from `start` on, and where they end."""
    kept, end, place = 0, start, start
    for count, token in enumerate(tokens, 1):
        if not 0 <= token < vocabulary.size:  # another model's
            break
        piece = vocabulary.piece(token)
        if vocabulary.is_eog(token) or not raw.startswith(piece, place):
            break
        place += len(piece)
        if not is_inside_character(raw, place):
            kept, end = count, place
    return kept, end


def _bytes_of(text: str) -> bytes:
    # Arguments and files may bring lone surrogates; what becomes of them is the tokenizer's matter.
    return text.encode("utf-8", "surrogatepass")


def _merge_system(messages: Sequence[Message]) -> list[Message]:
    """Put system texts in front of the next user message; left over, they become one."""
    merged: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message.content)
        elif message.role == "user" and waiting:
            merged.append(Message("user", "\n\n".join([*waiting, message.content])))
            waiting = []
        else:
            merged.append(message)
    if waiting:
        merged.append(Message("user", "\n\n".join(waiting)))
    return merged


def _text_of(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.text_of(token)


def _has_chatml(vocabulary: Vocabulary) -> bool:
    return len(vocabulary.tokenize("<|im_start|>", special=True, add_bos=False)) == 1


class _GenerationTag(Extension):
    """`{% generation %}`: marks what the assistant wrote, for training; here only its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment of transformers' chat templates, which models' templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise Refusal(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
