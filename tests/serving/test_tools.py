"""A forced call, read out of a reply that comes in any parts."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.options import GenerationParams
from specllama.serving.schemas import ChatRequest, Tool
from specllama.serving.tools import CallReader, call_schema, forced_tools, messages_of
from tests.serving.conftest import CHAT, Client, Serve, error_of

VALUES = st.recursive(
    st.none() | st.integers() | st.text('a}{" \\', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    arguments=st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
    cuts=st.sets(st.integers(0, 200)),
    indent=st.sampled_from([None, 0, 2]),
    end=st.sampled_from(["", " ", "\n"]),
)
def test_any_parts_give_the_same_call(
    arguments: dict[str, object], cuts: set[int], indent: int | None, end: str
) -> None:
    text = json.dumps({"name": "f", "arguments": arguments}, indent=indent) + end
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    reader = CallReader()
    parts = [reader.push(text[a:b]) for a, b in pairwise(places)]
    found = "".join(parts) + reader.finish(complete=True)
    assert reader.name == "f" and json.loads(found) == arguments
    assert found == found.strip()


def test_a_call_that_was_cut_keeps_what_there_is() -> None:
    reader = CallReader()
    assert reader.push('{"name": "f", "arguments": {"a": {"b": 1}') == '{"a": {"b": 1'
    assert reader.finish(complete=False) == "}"


def tool(name: str, parameters: dict[str, object]) -> Tool:
    return Tool.model_validate(
        {"type": "function", "function": {"name": name, "parameters": parameters}}
    )


def test_references_still_lead_into_their_own_schema() -> None:
    parameters = {"$defs": {"x": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}
    schema = call_schema([tool("f", parameters), tool("g", {"type": "object"})])
    assert schema["$defs"]["f"]["properties"]["a"] == {"$ref": "#/$defs/f/$defs/x"}
    assert [call["properties"]["name"] for call in schema["anyOf"]] == [
        {"const": "f"},
        {"const": "g"},
    ]


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def forcing(parameters: dict[str, object]) -> dict[str, object]:
    """The fields that force a call."""
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


@pytest.mark.parametrize("levels", [700, 5000, 50000])
def test_parameters_nested_too_deeply(client: Client, levels: int) -> None:
    """Whoever finds out: the parser, pydantic or the prompt's template, by Python's version."""
    deep = '{"properties": {"a": ' * levels + "{}" + "}}" * levels
    body = json.dumps(CHAT | forcing({"deep": 0})).replace('{"deep": 0}', deep)
    kind = {"content-type": "application/json"}
    response = client.post("/v1/chat/completions", data=body.encode(), headers=kind)
    assert response.status_code == 400 and "nested too deeply" in error_of(response)["message"]


def test_stop_strings_do_not_cut_a_call(serve: Serve) -> None:
    client = serve(params=GenerationParams(stop=("x",)))
    assert client.chat(stop=["a"], **forcing(nested(1))).ok
    assert client.chat(stop=["a"]).ok
    assert [params.stop for params in client.pool.params] == [(), ("a",)]


@pytest.mark.parametrize("choice, names", [("required", ["f", "g"]), ("none", [])])
def test_the_choice(choice: str, names: list[str]) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice}
    forced = forced_tools(ChatRequest.model_validate(body))
    assert [tool.function.name for tool in forced] == names


def test_a_conversation_with_calls_goes_on() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    body = {
        "messages": [
            {"role": "user", "content": "Ask f."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
    }
    messages = messages_of(ChatRequest.model_validate(body), "Be brief.", [tool("g", {})])
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0].content.startswith("Be brief.") and '"name": "g"' in messages[0].content
    assert messages[2].content == '{"name": "f", "arguments": {"a": 1}}'
    assert "42" in messages[3].content
