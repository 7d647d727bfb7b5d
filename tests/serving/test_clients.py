"""Clients that people have, against a server process on the built-in pair."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.real import Server

pytestmark = pytest.mark.model

ASK: Any = [{"role": "user", "content": "Name three trees."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [30, 40]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(real: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=real.base, api_key="none", timeout=120, max_retries=0)


class TestOpenAI:
    def test_chat(self, client: openai.OpenAI, real: Server) -> None:
        assert [model.id for model in client.models.list()] == ["smol"]
        reply = client.chat.completions.create(
            model="smol", messages=ASK, max_tokens=16, seed=5, temperature=0
        )
        assert reply.usage is not None and reply.usage.completion_tokens <= 16
        assert reply.choices[0].message.content and reply.choices[0].finish_reason == "length"
        timings = reply.to_dict()["timings"]
        assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
        assert timings["draft_rounds"] < 16

    def test_a_stream_is_the_same_text(self, client: openai.OpenAI) -> None:
        asked: Any = {"model": "smol", "messages": ASK, "max_tokens": 20, "seed": 5, "n": 1}
        whole = client.chat.completions.create(**asked)
        parts = list(
            client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == whole.choices[0].message.content
        assert parts[-1].usage is not None and whole.usage is not None
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens

    def test_stop_ends_before_the_string(self, client: openai.OpenAI) -> None:
        asked: Any = {"model": "smol", "prompt": "1 2 3 4", "max_tokens": 30, "temperature": 0}
        full = client.completions.create(**asked).choices[0]
        cut = client.completions.create(**asked, stop=[" 9"]).choices[0]
        assert " 9" in full.text and cut.finish_reason == "stop"
        assert cut.text == full.text.partition(" 9")[0]

    def test_json_schema(self, client: openai.OpenAI) -> None:
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        reply = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": "Describe a person as JSON."}],
            response_format=wanted,
            max_tokens=80,
            seed=1,
        )
        found = json.loads(reply.choices[0].message.content or "")
        assert set(found) == {"name", "age"} and found["age"] in (30, 40)
        assert isinstance(found["name"], str)

    def test_a_schema_that_cannot_be_followed_is_an_error(self, client: openai.OpenAI) -> None:
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="smol", messages=ASK, response_format=wanted)

    def test_logprobs_are_the_targets_own(self, client: openai.OpenAI) -> None:
        """With drafts they come out of batches; plain decoding says the same."""
        drafted, plain = (
            client.chat.completions.create(
                model="smol", messages=ASK, max_tokens=12, temperature=0, logprobs=True,
                top_logprobs=3, extra_body={"speculative.n_max": n_max},
            )
            for n_max in (4, 0)
        )  # fmt: skip
        assert "draft_n" in drafted.to_dict()["timings"]
        assert "draft_n" not in plain.to_dict()["timings"]
        logprobs = [reply.choices[0].logprobs for reply in (drafted, plain)]
        assert logprobs[0] is not None and logprobs[1] is not None
        pairs = list(zip(logprobs[0].content or [], logprobs[1].content or [], strict=True))
        assert len(pairs) == 12
        for ours, theirs in pairs:
            assert ours.token == theirs.token
            assert ours.logprob == pytest.approx(theirs.logprob, abs=0.05)
            assert ours.top_logprobs[0].token == ours.token, "temperature 0 takes the likeliest"
            values = [top.logprob for top in ours.top_logprobs]
            assert len(values) == 3 and values == sorted(values, reverse=True)
        assert b"".join(bytes(t.bytes or []) for t, _ in pairs).decode() == (
            drafted.choices[0].message.content
        )

    def test_a_forced_call(self, client: openai.OpenAI) -> None:
        place = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
        tool: Any = {
            "type": "function",
            "function": {"name": "weather", "parameters": place | {"required": ["city"]}},
        }
        asked: Any = {
            "model": "smol",
            "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
            "tools": [tool],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 60,
            "seed": 2,
        }
        cut = client.chat.completions.create(**asked | {"max_tokens": 1}).choices[0]
        assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        assert call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        parts = client.chat.completions.create(**asked, stream=True)
        calls = [c for p in parts if p.choices for c in p.choices[0].delta.tool_calls or []]
        arguments = "".join((c.function.arguments or "") for c in calls if c.function)
        assert arguments == call.function.arguments
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked | {"tool_choice": "auto"})
        assert refused.value.code == "unsupported_parameter" and refused.value.param

    def test_a_prediction(self, client: openai.OpenAI) -> None:
        asked: Any = {"model": "smol", "messages": ASK, "max_tokens": 24, "temperature": 0}
        text = client.chat.completions.create(**asked).choices[0].message.content
        usages = []
        for content in (text, "zebra quartz " * 8):
            prediction: Any = {"type": "content", "content": content}
            reply = client.chat.completions.create(**asked, prediction=prediction)
            assert reply.choices[0].message.content == text
            assert reply.usage is not None and reply.usage.completion_tokens_details is not None
            usages.append(reply.usage.completion_tokens_details)
        right, wrong = usages
        assert (right.accepted_prediction_tokens or 0) >= 12
        assert right.rejected_prediction_tokens == 0
        assert wrong.accepted_prediction_tokens == 0
        assert (wrong.rejected_prediction_tokens or 0) > 0

    def test_errors_are_what_the_client_knows(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt-9", messages=ASK)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as full:
            client.completions.create(model="smol", prompt="word " * 3000)
        assert full.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="typical"):
            extra = {"verify": "typical"}
            client.chat.completions.create(model="smol", messages=ASK, extra_body=extra)

    def test_many_at_once_get_their_own_replies(self, client: openai.OpenAI) -> None:
        def ask(number: int) -> str:
            grammar = f'root ::= "client {number}:" [a-z ]{{8,16}}'
            reply = client.chat.completions.create(
                model="smol", messages=ASK, max_tokens=24, seed=number,
                extra_body={"grammar": grammar},
            )  # fmt: skip
            return reply.choices[0].message.content or ""

        with ThreadPoolExecutor(6) as threads:
            replies = list(threads.map(ask, range(6)))
        for number, reply in enumerate(replies):
            assert re.match(rf"client {number}:[a-z ]+$", reply), reply


def test_llm(real: Server, tmp_path: Path) -> None:
    """Simon Willison's llm, configured as its manual says."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: smol\n  api_base: {real.base}\n"
    )
    environment = os.environ | {
        "LLM_USER_PATH": str(tmp_path),
        "LLM_LOAD_PLUGINS": "",
        "OPENAI_API_KEY": "none",
    }
    llm = [sys.executable, "-m", "llm", "-m", "local", "-o", "max_tokens", "12"]
    done = subprocess.run(
        [*llm, "-o", "seed", "1", "Name three trees."],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(real: Server) -> None:
    body = json.dumps({"messages": ASK, "max_tokens": 8, "stream": True})
    command = ["curl", "-sN", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(
        [*command, f"{real.base}/chat/completions"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]" and all(json.loads(event) for event in events[:-1])
    with_defaults = subprocess.run(
        ["curl", "-s", f"{real.base}/chat/completions", "-d", body],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "application/json" in json.loads(with_defaults.stdout)["error"]["message"]


def test_the_same_seed_says_the_same_with_and_without_drafts(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(
            model="smol", prompt="Once upon a time", max_tokens=16, seed=11, extra_body=extra
        )
        .choices[0]
        .text
        for extra in ({}, {"speculative.n_max": 0}, {"num_draft_tokens": 2})
    }
    assert len(texts) == 1


def test_bad_requests_disturb_nobody(client: openai.OpenAI, real: Server) -> None:
    """A stream goes on, token for token, while others fail and leave."""
    asked: Any = {"model": "smol", "messages": ASK, "max_tokens": 32, "temperature": 0}
    extra = {"extra_body": {"speculative.n_max": 0}}
    alone = client.chat.completions.create(**asked, **extra).choices[0].message.content
    parts = client.chat.completions.create(**asked, **extra, stream=True)
    text = next(parts).choices[0].delta.content or ""
    bad: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "schema": {"type": "x"}}},
        {"grammar": "root ::= ("},
        {"messages": [{"role": "user", "content": "word " * 3000}]},
        {"logit_bias": {"99999999": 1}},
        {"temperature": -1},
    ]
    for fields in bad:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="smol", messages=ASK, extra_body=fields)
    left = client.chat.completions.create(**asked, stream=True)
    next(left)
    left.close()
    text += "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == alone
