"""From a request's fields to `GenerationParams`; the server's settings fill what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specllama.options import GenerationParams
from specllama.sampling.params import SamplingParams
from specllama.serving.errors import ApiError, unsupported
from specllama.serving.schemas import ChatRequest, CompletionRequest, ResponseFormat, Settings

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
    "repeat_last_n",
)
_ANY_OBJECT = {"type": "object"}
_NOT_SERVED = {
    "audio": "This server makes text only.",
    "web_search_options": "This server does not search the web.",
    "functions": "Use tools and tool_choice instead.",
    "function_call": "Use tools and tool_choice instead.",
    "suffix": "This server does not fill in the middle.",
    "echo": "This server does not repeat the prompt.",
}


def check_served(request: Settings) -> None:
    """Refuse what would change the reply and is not served.

    Raises:
        ApiError: 400 unsupported_parameter, with the field.
    """
    if request.n is not None and request.n > 1:
        raise unsupported("n", "Only n = 1 is served; send the request several times.")
    extra = request.model_extra or {}
    for name, sentence in _NOT_SERVED.items():
        if extra.get(name):
            raise unsupported(name, sentence)
    if extra.get("best_of") not in (None, 1):
        raise unsupported("best_of", "Only best_of = 1 is served.")
    if extra.get("modalities") not in (None, ["text"]):
        raise unsupported("modalities", _NOT_SERVED["audio"])


def generation_params(
    request: Settings, defaults: GenerationParams, schema: Mapping[str, Any] | None = None
) -> GenerationParams:
    """How this request is generated.

    Args:
        schema: a JSON schema that the reply has to follow for another reason (a forced call). It
            also ends the reply: a stop string would only cut the call.

    Raises:
        ApiError, UsageError: values that contradict each other, or that no model can serve.
    """
    return replace(
        defaults,
        max_tokens=_max_tokens(request, defaults),
        sampling=_sampling(request, defaults.sampling),
        seed=_seed(request, defaults),
        stop=_stop(request, defaults) if schema is None else (),
        verify=request.verify or defaults.verify,
        **_constraint(request, defaults, schema),
        **_drafting(request, defaults),
        **_logprobs(request),
    )


def _max_tokens(request: Settings, defaults: GenerationParams) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    asked = request.max_tokens if newer is None else newer
    return defaults.max_tokens if asked is None else asked


def _stop(request: Settings, defaults: GenerationParams) -> tuple[str, ...]:
    if request.stop is None:
        return defaults.stop
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def _seed(request: Settings, defaults: GenerationParams) -> int | None:
    if request.seed is None:
        return defaults.seed
    return None if request.seed == -1 else request.seed


def _sampling(request: Settings, defaults: SamplingParams) -> SamplingParams:
    values = {name: getattr(request, name) for name in _SAMPLING}
    given = {name: value for name, value in values.items() if value is not None}
    if request.logit_bias is not None:
        given["logit_bias"] = {int(token): bias for token, bias in request.logit_bias.items()}
    return replace(defaults, **given)


def _logprobs(request: Settings) -> dict[str, Any]:
    if isinstance(request, CompletionRequest):
        return {"logprobs": request.logprobs is not None, "top_logprobs": request.logprobs or 0}
    assert isinstance(request, ChatRequest)
    if request.top_logprobs and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    return {"logprobs": bool(request.logprobs), "top_logprobs": request.top_logprobs or 0}


def _drafting(request: Settings, defaults: GenerationParams) -> dict[str, Any]:
    """How much may be drafted, and from what; a prediction joins the server's drafters."""
    both = {n for n in (request.n_max, request.num_draft_tokens) if n is not None}
    if len(both) > 1:
        raise ApiError(
            400,
            "speculative.n_max and num_draft_tokens are two names for one number; give one.",
            param="num_draft_tokens",
        )
    draft_max = both.pop() if both else defaults.draft_max
    if draft_max == 0:
        return {"drafter": "none", "draft_max": 0}
    drafting: dict[str, Any] = {"draft_max": draft_max}
    if request.prediction is not None:
        # the prompt must not count as the user's prediction
        drafting |= {"predict": request.prediction.text(), "copy_input": False}
        drafters = defaults.drafters()
        if drafters and "text" not in drafters:
            drafting["drafter"] = "+".join(("text", *drafters))
    elif defaults.drafters() == ("text",) and not defaults.has_text:
        drafting["drafter"] = "none"
    return drafting


def _constraint(
    request: Settings, defaults: GenerationParams, schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The grammar or schema of the reply; the request's replaces the server's."""
    given = {
        "a tool call": schema,
        "response_format": _schema_of(request.response_format),
        "json_schema": request.json_schema,
        "grammar": request.grammar,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ApiError(
            400, f"{named[0]} and {named[1]} cannot be combined; give one.", param=named[1]
        )
    if not named:
        return {}
    if request.grammar is not None:
        return {"grammar": request.grammar, "json_schema": None}
    return {"grammar": None, "json_schema": given[named[0]]}


def _schema_of(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    nested = wanted.json_schema.schema_ if wanted.json_schema is not None else None
    schema = wanted.schema_ if nested is None else nested
    if schema is None and wanted.type == "json_schema":
        raise ApiError(
            400,
            "response_format has no schema: it goes into json_schema.schema (or schema).",
            param="response_format.json_schema.schema",
        )
    return _ANY_OBJECT if schema is None else schema
