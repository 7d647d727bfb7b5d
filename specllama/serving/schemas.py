"""What clients may send: OpenAI's fields, llama.cpp's and mlx-lm's additions, and two of ours.

Types are strict (a number in quotes is an error) and every value has a range, so that whatever gets
past this file is of the right kind. Fields that are not named here are passed over, as every server
of this API does; `params.py` names those that would change the reply. Every list ends at its first
error: a body of 8 MiB could have millions, each a thousand times its size.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specllama.options import VerifyName
from specllama.sampling.params import LARGEST
from specllama.text.stop import LONGEST_STOP

MOST_TOP_LOGPROBS = 20
MOST_STOPS = 64
MOST_MESSAGES = 100_000
MOST_TOKENS = 1_000_000

_TOKEN = re.compile("[0-9]{1,9}")


def _fail_fast(biases: Any) -> Any:
    """Of biases with a mistake only that one, as `fail_fast` does for lists."""
    if isinstance(biases, dict):
        for token, bias in biases.items():
            is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
            if not (_TOKEN.fullmatch(token) and is_number and -LARGEST <= bias <= LARGEST):
                return {token: bias}
    return biases


Tokens = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[Tokens], Field(fail_fast=True, max_length=MOST_TOKENS)]
Stop = Annotated[str, Field(max_length=LONGEST_STOP)]
Stops = Annotated[list[Stop], Field(fail_fast=True, max_length=MOST_STOPS)]
Biases = Annotated[
    dict[
        Annotated[str, Field(pattern=f"^{_TOKEN.pattern}$")],
        Annotated[float, Field(ge=-LARGEST, le=LARGEST)],
    ],
    Field(max_length=MOST_TOKENS),
    BeforeValidator(_fail_fast),
]


class Body(BaseModel):
    """A request's body, or a part of it."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Request(Body):
    """A whole body."""

    @model_validator(mode="before")
    @classmethod
    def _whole_characters(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("A text has half a character (a lone surrogate) in it") from error
        return data


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = None


class Part(Body):
    """A part of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[Part], Field(fail_fast=True)]


class FunctionCall(Body):
    """A call that the assistant made."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call in the past conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Prediction(Body):
    """A text that the reply will resemble."""

    type: Literal["content"]
    content: Content

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class NamedSchema(Body):
    """OpenAI's wrapping of a JSON schema."""

    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the reply has to look like; `schema` beside `type` is llama.cpp's flat form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class Function(Body):
    """A function that may be called."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Body):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Body):
    """The name in a forced choice."""

    name: str


class ToolChoice(Body):
    """A forced choice."""

    type: Literal["function"]
    function: ChosenFunction


class Settings(Request):
    """What chat and text completions have in common. Left out or null: the server's own value."""

    model: str | None = None
    max_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Stops | None = None
    seed: Annotated[int, Field(ge=-1, lt=2**64)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    logit_bias: Biases | None = None
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    prediction: Prediction | None = None
    verify: VerifyName | None = None
    n_max: Tokens | None = Field(None, alias="speculative.n_max")
    num_draft_tokens: Tokens | None = None


class ChatRequest(Settings):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)
    ]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None


class CompletionRequest(Settings):
    """POST /v1/completions."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MOST_MESSAGES)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MOST_MESSAGES)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


class TokenizeRequest(Request):
    """POST /tokenize, as llama.cpp's."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Request):
    """POST /detokenize, as llama.cpp's."""

    tokens: TokenIds
