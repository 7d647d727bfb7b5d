"""Tools: the call is forced by a grammar, so that it always is a call, and a valid one.

Whether to call at all (`tool_choice` "auto") is a decision that only models trained for it take
well, each in its own notation; it is refused rather than guessed at.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.serving.errors import ApiError, unsupported
from specllama.serving.schemas import ChatMessage, ChatRequest, Tool, ToolChoice
from specllama.text.chat import Message

_ASK = 'Call one of these functions, as {{"name": …, "arguments": …}}:\n{functions}'
_OPENING = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:\s*')
_CLOSING = re.compile(r"[\s}]*\Z")


def forced_tools(request: ChatRequest) -> list[Tool]:
    """The tools of which one has to be called; empty where none is.

    Raises:
        ApiError: a choice that is not served, or that names no tool.
    """
    tools, choice = request.tools or [], request.tool_choice
    if choice == "none" or (not tools and choice is None):
        return []
    if not tools:
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
    if choice is None or choice == "auto":
        raise unsupported(
            "tool_choice",
            'tool_choice "auto" is not served: give "required", a function\'s name, or "none".',
        )
    if isinstance(choice, ToolChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            name = choice.function.name
            raise ApiError(400, f"No tool is named {name!r}.", param="tool_choice.function.name")
    return tools


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON schema of a call of one of these tools."""
    calls, definitions = [], {}
    for tool in tools:
        name = tool.function.name
        where = f"#/$defs/{name}"
        definitions[name] = _moved(tool.function.parameters or {"type": "object"}, where)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": where}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return call | {"$defs": definitions}


def _moved(schema: Any, where: str) -> Any:
    """A schema whose references still lead into it once it is part of another."""
    if isinstance(schema, list):
        return [_moved(item, where) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, where) for name, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = where + reference.removeprefix("#")
    return moved


def messages_of(request: ChatRequest, system: str, forced: Sequence[Tool]) -> list[Message]:
    """The conversation as a chat template takes it.

    Calls of the past are written as they were generated, and their results as the user's.
    """
    messages = [_message(message) for message in request.messages]
    if system and messages[0].role != "system":
        messages.insert(0, Message("system", system))
    if forced:
        functions = [json.dumps(_described(tool), ensure_ascii=False) for tool in forced]
        asked = _ASK.format(functions="\n".join(functions))
        if messages[0].role == "system":
            asked = f"{messages.pop(0).content}\n\n{asked}"
        messages.insert(0, Message("system", asked))
    return messages


def _described(tool: Tool) -> Mapping[str, Any]:
    return tool.function.model_dump(exclude_none=True)


def _message(message: ChatMessage) -> Message:
    text = message.text()
    match message.role:
        case "tool":
            return Message("user", f"<tool_response>\n{text}\n</tool_response>")
        case "developer":
            return Message("system", text)
        case "assistant" if message.tool_calls:
            calls = [
                f'{{"name": {json.dumps(call.function.name)}, '
                f'"arguments": {call.function.arguments}}}'
                for call in message.tool_calls
            ]
            return Message("assistant", "\n".join([text, *calls]).strip())
        case "system" | "user" | "assistant" as role:
            return Message(role, text)


class CallReader:
    """Reads a forced call out of a reply that arrives in parts.

    Attributes:
        id: what clients refer to the call by.
        name: the function's, "" until it is known.
    """

    def __init__(self) -> None:
        self.id = f"call_{secrets.token_hex(12)}"
        self.name = ""
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """The part of the arguments that is certain by now."""
        self._held += text
        if not self.name:
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            self.name = opening[1]
            self._held = self._held[opening.end() :]
        if not self._begun:
            self._held = self._held.lstrip()
            self._begun = bool(self._held)
        closing = _CLOSING.search(self._held)
        assert closing is not None  # it also matches nothing, at the end
        certain = self._held[: closing.start()]
        self._held = self._held[closing.start() :]
        return certain

    def finish(self, *, complete: bool) -> str:
        """The rest of the arguments; the last brace of a complete call is the call's own."""
        rest = self._held if self.name else ""
        if complete:
            rest = rest.rstrip().removesuffix("}").rstrip()
        return rest
