"""What the routes answer, over HTTP and a pool that follows a script."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from typing import Any

import pytest
import requests

from specllama.errors import EngineError
from specllama.options import GenerationParams
from specllama.sampling.params import SamplingParams
from tests.serving.conftest import Client, Serve, error_of
from tests.serving.fakes import FakeDecoder, Script
from tests.text.fakes import FakeVocabulary


class TestChat:
    def test_a_whole_reply(self, client: Client) -> None:
        reply = client.chat(model="fake", seed=3).json()
        (choice,) = reply["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
        assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
        assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
        assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + 4
        assert reply["specllama"]["seed"] == 3
        assert client.pool.params[-1].seed == 3

    def test_a_stream_says_the_same_in_parts(self, client: Client) -> None:
        first, *pieces, last, done = client.parts()
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
        assert text == "Hello world"
        assert {part["id"] for part in (first, *pieces, last)} == {first["id"]}
        assert last["choices"][0]["finish_reason"] == "stop" and last["choices"][0]["delta"] == {}
        assert last["timings"]["predicted_n"] == 4 and done == "[DONE]"
        assert not any("usage" in part for part in (first, *pieces, last))

    def test_parts_say_which_tokens_were_drafted(self, client: Client) -> None:
        _, *pieces, last, _ = client.parts()
        drafted = [p for p in pieces if p["specllama"]["source"] == "model"]
        assert "".join(p["choices"][0]["delta"]["content"] for p in drafted) == "lo wor"
        assert sum(p["specllama"]["tokens"] for p in pieces) == 4
        assert last["specllama"]["by_depth"] == [{"drafted": 3, "tested": 3, "accepted": 2}]

    def test_usage_comes_in_a_part_of_its_own_where_it_is_asked_for(self, client: Client) -> None:
        *parts, usage, _ = client.parts(stream_options={"include_usage": True})
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4
        assert all(part["usage"] is None for part in parts)

    def test_settings_reach_the_engine(self, serve: Serve) -> None:
        defaults = GenerationParams(
            max_tokens=9, draft_max=5, sampling=SamplingParams(temperature=0.3, top_k=7)
        )
        client = serve(params=defaults)
        client.chat()
        client.chat(
            temperature=0, max_tokens=3, max_completion_tokens=2, stop=["a", "b"], top_p=0.5,
            logit_bias={"5": -100}, verify="match", num_draft_tokens=4, seed=-1,
        )  # fmt: skip
        unset, given = client.pool.params
        assert unset == GenerationParams(
            max_tokens=9, draft_max=5, logprobs=False, sampling=defaults.sampling
        )
        assert given.sampling == SamplingParams(
            temperature=0, top_k=7, top_p=0.5, logit_bias={5: -100}
        )
        assert (given.max_tokens, given.stop, given.verify) == (2, ("a", "b"), "match")
        assert (given.draft_max, given.drafter, given.seed) == (4, "auto", None)

    @pytest.mark.parametrize("field", ["speculative.n_max", "num_draft_tokens"])
    def test_drafting_can_be_switched_off(self, client: Client, field: str) -> None:
        reply = client.chat(**{field: 0}).json()
        assert client.pool.params[-1].drafters() == ()
        assert not {"draft_n", "draft_n_accepted", "draft_rounds"} & set(reply["timings"])
        drafted = client.chat(**{field: 4}).json()["timings"]
        figures = ("draft_n", "draft_n_accepted", "draft_rounds")
        assert [drafted[name] for name in figures] == [3, 2, 2]

    def test_logprobs(self, client: Client) -> None:
        logprobs = client.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
        first = logprobs["content"][0]
        assert (first["token"], first["logprob"], first["bytes"]) == ("a", -0.25, [97])
        assert [top["token"] for top in first["top_logprobs"]] == ["a", "b"]
        assert len(logprobs["content"]) == 4
        _, *pieces, _, _ = client.parts(logprobs=True)
        streamed = [t for p in pieces for t in p["choices"][0]["logprobs"]["content"]]
        assert [t["token"] for t in streamed] == [t["token"] for t in logprobs["content"]]

    def test_a_system_prompt_of_the_server(self, serve: Serve) -> None:
        client = serve(system="Be brief.")
        client.chat()
        client.chat(messages=[{"role": "developer", "content": [{"type": "text", "text": "Own."}]}])
        assert client.pool.prompts == [
            [("system", "Be brief."), ("user", "Say hello.")],
            [("system", "Own.")],
        ]

    def test_a_prediction_is_drafted_from_and_counted(self, client: Client) -> None:
        prediction = {"type": "content", "content": [{"type": "text", "text": "Hello"}]}
        details = client.chat(prediction=prediction).json()["usage"]["completion_tokens_details"]
        assert client.pool.params[-1].predict == "Hello"
        assert details["accepted_prediction_tokens"] == 2
        assert details["rejected_prediction_tokens"] == 1
        details = client.chat().json()["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0

    @pytest.mark.parametrize("drafter, joined", [("model", "text+model"), ("none", "none")])
    def test_a_prediction_joins_the_servers_drafters(
        self, serve: Serve, drafter: str, joined: str
    ) -> None:
        client = serve(params=GenerationParams(drafter=drafter))
        client.chat(prediction={"type": "content", "content": "x"})
        assert client.pool.params[-1].drafter == joined

    def test_a_server_of_predictions_alone_says_the_rest_plainly(self, serve: Serve) -> None:
        client = serve(params=GenerationParams(drafter="text"))
        client.chat()
        assert client.pool.params[-1].drafter == "none"
        client.chat(prediction={"type": "content", "content": "x"})
        assert client.pool.params[-1].drafter == "text"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class TestConstraints:
    @pytest.mark.parametrize(
        "wanted",
        [
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            {"type": "json_schema", "schema": SCHEMA},
            {"type": "json_object", "schema": SCHEMA},
        ],
    )
    def test_schemas(self, client: Client, wanted: dict[str, Any]) -> None:
        assert client.chat(response_format=wanted).ok
        assert client.pool.params[-1].json_schema == SCHEMA

    def test_any_object_text_and_grammars(self, client: Client) -> None:
        client.chat(response_format={"type": "json_object"})
        client.chat(response_format={"type": "text"})
        client.chat(grammar='root ::= "a"')
        client.chat(json_schema=SCHEMA)
        asked = [(p.json_schema, p.grammar) for p in client.pool.params[-4:]]
        assert asked == [
            ({"type": "object"}, None), (None, None), (None, 'root ::= "a"'), (SCHEMA, None)
        ]  # fmt: skip

    def test_two_of_them_are_refused(self, client: Client) -> None:
        response = client.chat(grammar='root ::= "a"', response_format={"type": "json_object"})
        assert response.status_code == 400 and error_of(response)["param"] == "grammar"

    def test_a_schema_has_to_be_there(self, client: Client) -> None:
        response = client.chat(response_format={"type": "json_schema"})
        assert error_of(response)["param"] == "response_format.json_schema.schema"


class TestCompletions:
    def test_a_whole_text(self, client: Client) -> None:
        body = {"prompt": [72, 105], "logprobs": 1, "max_tokens": 2}
        reply = client.post("/v1/completions", body).json()
        (choice,) = reply["choices"]
        assert reply["object"] == "text_completion"
        assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")
        assert choice["logprobs"] == {
            "tokens": ["a", "b"],
            "token_logprobs": [-0.25, -0.25],
            "top_logprobs": [{"a": 0.0}, {"a": 0.0, "b": -0.25}],
            "text_offset": [0, 3],
        }
        assert client.pool.prompts[-1] == [72, 105]

    def test_a_stream(self, client: Client) -> None:
        *pieces, last, _ = client.parts("/v1/completions", prompt="x")
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == "Hello world"
        assert last["choices"][0]["finish_reason"] == "stop"

    @pytest.mark.parametrize("prompt", [["one"], [[1, 2]]])
    def test_a_list_of_one_prompt_is_that_prompt(self, client: Client, prompt: Any) -> None:
        assert client.post("/v1/completions", {"prompt": prompt}).ok
        assert client.pool.prompts[-1] == prompt[0]

    def test_several_prompts_are_refused(self, client: Client) -> None:
        response = client.post("/v1/completions", {"prompt": ["a", "b"]})
        assert error_of(response)["code"] == "unsupported_parameter"


def test_models(client: Client) -> None:
    (about,) = client.get("/v1/models").json()["data"]
    assert (about["id"], about["meta"]["draft"]) == ("fake", "fake-draft")
    assert client.get("/v1/models/fake").json() == about
    assert client.get("/v1/models/fake-135m").json() == about
    missing = client.get("/v1/models/no/such")
    assert missing.status_code == 404 and error_of(missing)["code"] == "model_not_found"


def test_health_and_props(client: Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    props = client.get("/props").json()
    assert props["default_generation_settings"]["sampling"]["top_k"] == 40
    assert (props["total_slots"], props["drafters"]) == (2, ["text", "model"])


def test_tokens_there_and_back(client: Client) -> None:
    tokens = client.post("/tokenize", {"content": "hello world🦙"}).json()["tokens"]
    assert tokens[:2] == [256, 257]
    back = client.post("/detokenize", {"tokens": tokens})
    assert back.json() == {"content": "hello world🦙"}
    pieces = client.post("/tokenize", {"content": "hello🦙", "with_pieces": True}).json()["tokens"]
    assert pieces[0] == {"id": 256, "piece": "hello"} and pieces[1]["piece"] == [0xF0]
    (end,) = client.post("/tokenize", {"content": "</s>", "with_pieces": True}).json()["tokens"]
    assert end["piece"] == "</s>", "as /detokenize has it"
    assert error_of(client.post("/detokenize", {"tokens": [9999]}))["param"] == "tokens"


def test_metrics(serve: Serve) -> None:
    client = serve()
    client.chat()
    client.parts()
    client.pool.wait_until_idle()
    text = client.get("/metrics").text
    assert re.search(r"^specllama:spec_decode_num_accepted_tokens_total 4\.0$", text, re.M)
    assert 'specllama:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4.0' in text
    assert "specllama:time_to_first_token_seconds_count 2.0" in text
    for name in (
        "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
        "prompt_tokens_total", "tokens_predicted_total", "requests_processing",
        "requests_deferred", "inter_token_latency_seconds_bucket",
    ):  # fmt: skip
        assert re.search(rf"^specllama:{name}\b", text, re.M), name


class SlowVocabulary(FakeVocabulary):
    """Each piece takes a moment, as those of a million tokens do."""

    def piece(self, token: int, *, special: bool = True) -> bytes:
        time.sleep(0.005)
        return super().piece(token, special=special)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {"content": "x" * 200, "with_pieces": True}),
        ("/detokenize", {"tokens": [97] * 200}),
    ],
)
def test_others_are_served_while_tokens_are_written(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    client = serve(decoder=FakeDecoder(vocabulary=SlowVocabulary(("hello",))))
    found: list[requests.Response] = []
    asking = threading.Thread(target=lambda: found.append(client.post(path, body)))
    asking.start()
    n_served = 0
    while asking.is_alive():
        n_served += client.get("/health").ok
    assert found[0].ok and n_served > 5


BAD_CHATS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"temperature": "0.8"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"seed": -2}, "seed"),
    ({"seed": 10**30}, "seed"),
    ({"stop": ""}, None),
    ({"stop": [5]}, "stop[0]"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stop": "x" * 1001}, "stop"),
    ({"stop": ["a", "x" * 1001]}, "stop[1]"),
    ({"logit_bias": {"5": 1e39}}, "logit_bias.5"),
    ({"logit_bias": {"5": 10**400}}, "logit_bias.5"),
    ({"logit_bias": {"1": 2, "5": True}}, "logit_bias.5"),
    ({"repeat_penalty": 1e-38}, None),
    ({"logit_bias": {"hello": 1}}, "logit_bias.hello"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"verify": "hope"}, "verify"),
    ({"speculative.n_max": -1}, "speculative.n_max"),
    ({"speculative.n_max": 3, "num_draft_tokens": 4}, "num_draft_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"web_search_options": {"x": 1}}, "web_search_options"),
    ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "schema": "x"}}, "response_format.schema"),
    ({"grammar": " "}, None),
]


class TestBadRequests:
    @pytest.mark.parametrize("fields, param", BAD_CHATS, ids=lambda value: str(value)[:40])
    def test_a_field(self, client: Client, fields: dict[str, Any], param: str | None) -> None:
        before = len(client.pool.prompts)
        body = json.dumps({"messages": [{"role": "user", "content": "x"}]} | fields)
        headers = {"content-type": "application/json"}
        response = client.post("/v1/chat/completions", data=body, headers=headers)
        assert response.status_code == 400 and error_of(response)["param"] == param
        assert len(client.pool.prompts) == before, "a bad request reached the pool"

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe{}", b'{"messages": \xc3\x28}',
            b'{"messages":' + b"[" * 100_000, b'{"seed":' + b"9" * 5000 + b"}",
            b'{"messages":[{"role":"user","content":"\\ud800"}]}',
            b'{"messages":[{"role":"\\ud800","content":"x"}]}',
            b'{"messages":[{"role":"user","content":"x"}],"logit_bias":{"\\ud800":1}}',
            b'{"messages":[{"role":"user","content":"x"}],"model":"\\udfff"}',
        ],
        ids=lambda body: repr(body[:30]),
    )  # fmt: skip
    def test_a_body(self, client: Client, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        response = client.post("/v1/chat/completions", data=body, headers=headers)
        assert response.status_code == 400 and error_of(response)
        assert client.chat().ok

    @pytest.mark.parametrize(
        "field, entry",
        [
            ("prompt", "-1"), ("prompt", "[-1]"), ("prompt", "1"), ("messages", "{}"),
            ("stop", "5"), ("logit_bias", '"x{}":1'), ("logit_bias", '"{}":"x"'),
        ],
    )  # fmt: skip
    def test_many_mistakes_are_as_one(self, client: Client, field: str, entry: str) -> None:
        count = 400_000 if ":" in entry else 1_100_000
        entries = ",".join(entry.format(n) for n in range(count))
        listed = f"{{{entries}}}" if ":" in entry else f"[{entries}]"
        body = f'{{"prompt":"x","{field}":{listed}}}'
        path = "/v1/chat/completions" if field == "messages" else "/v1/completions"
        headers = {"content-type": "application/json"}
        begun = time.process_time()
        json.loads(body)
        parsing_s = time.process_time() - begun
        begun = time.process_time()
        response = client.post(path, data=body, headers=headers)
        assert response.status_code == 400 and error_of(response)["param"].startswith(field)
        # a machine that is slow today reads slowly, too; as many messages took minutes
        assert time.process_time() - begun < 2 + 12 * parsing_s

    def test_another_kind_of_body(self, client: Client) -> None:
        response = client.post("/v1/chat/completions", data={"messages": "x"})
        assert response.status_code == 400 and "application/json" in error_of(response)["message"]

    def test_a_model_that_is_not_there(self, client: Client) -> None:
        response = client.chat(model="gpt-9")
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found" and "fake" in response.text

    def test_a_prompt_that_does_not_fit(self, client: Client) -> None:
        response = client.chat(messages=[{"role": "user", "content": "x" * 600}])
        assert response.status_code == 400
        assert error_of(response)["code"] == "context_length_exceeded"
        streamed = client.chat(messages=[{"role": "user", "content": "x" * 600}], stream=True)
        assert streamed.status_code == 400, "an error before the stream is a status"

    def test_routes_that_are_not_there(self, client: Client) -> None:
        assert error_of(client.get("/v1/embeddings")) and client.get("/nothing").status_code == 404
        assert client.get("/v1/chat/completions").status_code == 405

    def test_an_error_in_the_engine(self, serve: Serve) -> None:
        client = serve(Script(error=EngineError("llama.cpp refused.")))
        response = client.chat()
        assert response.status_code == 500 and error_of(response)["type"] == "server_error"
        assert response.headers["x-should-retry"] == "false"
        *_, last = client.parts()
        assert last["error"]["message"] == "llama.cpp refused."

    def test_a_bug_tells_the_log_and_not_the_client(
        self, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = serve(Script(error=ZeroDivisionError("/home/me/secret")))
        response = client.chat()
        assert response.status_code == 500 and "secret" not in response.text
        assert "secret" in caplog.text
