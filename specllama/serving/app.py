"""The routes. Each is a method of `Api`; everything they need is found in the files beside this."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from specllama.decoder import SpeculativeDecoder
from specllama.errors import QueueFull
from specllama.options import GenerationParams
from specllama.pool import OnEvent, Pool, PoolStats
from specllama.serving.errors import ApiError, api_error, invalid_body, unsupported
from specllama.serving.formats import ChatFormat, Format, TextFormat
from specllama.serving.limits import BodyLimit, Guard, Key
from specllama.serving.metrics import Metrics, TokenTimes
from specllama.serving.page import add_page
from specllama.serving.params import check_served, generation_params
from specllama.serving.running import ClientGone, Running, Submit, by_source, unless_gone
from specllama.serving.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Settings,
    TokenizeRequest,
)
from specllama.serving.sse import DONE, PING, EventStream, event
from specllama.serving.tools import call_schema, forced_tools, messages_of

log = logging.getLogger("specllama.server")

PING_S = 15.0
"""Seconds of silence (a long prompt is read) after which a stream says that it lives."""

MOST_ERRORS = 100
"""Of a body, those that are looked at for the one to tell."""

LONGEST_WAIT_S = 60
"""The most a client is told to wait when the queue is full."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server serves, and to whom.

    Attributes:
        name: what clients call the model.
        params: the settings of requests that do not say otherwise.
        system: the system prompt of conversations without one.
        api_key: "" asks for none.
        origins: web origins whose pages may use the server.
        timeout_s: the longest a reply may take.
        local_names: refuse requests to any host name but this machine's own.
    """

    name: str
    params: GenerationParams = field(default_factory=GenerationParams)
    system: str = ""
    api_key: str = ""
    origins: tuple[str, ...] = ()
    timeout_s: float = 600.0
    local_names: bool = True


class ErrorText(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorText


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": "What went wrong."} for status in ("4XX", "5XX")
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "object"}}}}
}


def create_app(decoder: SpeculativeDecoder, pool: Pool, options: ServerOptions) -> FastAPI:
    """The application over a pool that is open; both are closed by whoever opened them."""
    app = FastAPI(
        title="specllama",
        version=version("specllama"),
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        exception_handlers={HTTPException: _say},
    )
    app.include_router(Api(decoder, pool, options).router())
    add_page(app)
    app.add_middleware(BodyLimit)
    if options.api_key:
        app.add_middleware(Key, key=options.api_key)
    app.add_middleware(
        Guard,
        origins=options.origins,
        local_names=options.local_names and not options.api_key,
    )
    if options.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    return app


def shown_name(name: str) -> str:
    """What clients see of a model's name: of a path, only the file."""
    return name.replace("\\", "/").rpartition("/")[2] if name.endswith(".gguf") else name


async def _say(request: Request, error: Exception) -> Response:
    return api_error(error).response()


class Route(APIRoute):
    """A route whose errors are OpenAI's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's own handler, with whatever it raises put into words."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return invalid_body(error.errors()[:MOST_ERRORS], error.body).response()
            except ClientGone:
                return Response(status_code=499)
            except Exception as error:
                return api_error(error).response()

        return answer


class Api:
    """The endpoints over one decoder and its pool."""

    def __init__(self, decoder: SpeculativeDecoder, pool: Pool, options: ServerOptions) -> None:
        self._decoder = decoder
        self._vocabulary = decoder.vocabulary
        self._pool = pool
        self._options = options
        self._metrics = Metrics(pool)

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(route_class=Route)
        post = partial(router.post, response_model=None)
        get = partial(router.get, response_model=None)
        post("/v1/chat/completions", responses=_STREAM)(self.chat)
        post("/v1/completions", responses=_STREAM)(self.complete)
        post("/tokenize")(self.tokenize)
        post("/detokenize")(self.detokenize)
        get("/v1/models")(self.models)
        get("/v1/models/{name:path}")(self.model)
        get("/health")(self.health)
        get("/metrics", response_class=PlainTextResponse)(self.metrics)
        get("/props")(self.props)
        return router

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Reply to a conversation."""
        self._check(body)
        forced = forced_tools(body)
        schema = call_schema(forced) if forced else None
        params = generation_params(body, self._options.params, schema)
        messages = messages_of(body, self._options.system, forced)
        form = ChatFormat(
            self._options.name,
            self._vocabulary,
            predicted=body.prediction is not None,
            forced=bool(forced),
        )

        def submit(on_event: OnEvent) -> Any:
            return self._pool.submit_chat(messages, params, on_event=on_event)

        return await self._reply(request, body, form, submit)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        self._check(body)
        prompt = _one_prompt(body)
        params = generation_params(body, self._options.params)
        predicted = body.prediction is not None
        form = TextFormat(self._options.name, self._vocabulary, predicted=predicted)

        def submit(on_event: OnEvent) -> Any:
            return self._pool.submit(prompt, params, on_event=on_event)

        return await self._reply(request, body, form, submit)

    def _check(self, body: Settings) -> None:
        if body.model is not None:
            self._require(body.model)
        check_served(body)
        if body.model_extra:
            log.debug("fields passed over: %s", ", ".join(body.model_extra))

    def _require(self, name: str) -> None:
        known = {self._options.name, shown_name(self._decoder.target_name)}
        if name not in known:
            raise ApiError(
                404,
                f"No model {name!r} here. This server has: {', '.join(sorted(known))}.",
                param="model",
                code="model_not_found",
            )

    async def _reply(
        self, request: Request, body: Settings, form: Format, submit: Submit
    ) -> Response:
        times = self._metrics.follow()
        running = Running(self._options.timeout_s)
        if not body.stream:
            whole = self._whole(running, submit, form, times)
            return JSONResponse(await unless_gone(request.receive, whole))
        await self._submit(running, submit)
        options = body.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        return EventStream(_stream(running, form, times, wants_usage), running.close)

    async def _submit(self, running: Running, submit: Submit) -> None:
        try:
            await running.submit(submit)
        except QueueFull as full:
            error = api_error(full)
            stats = await asyncio.to_thread(self._pool.stats)
            error.headers["retry-after"] = str(_wait_s(stats))
            raise error from full

    async def _whole(
        self, running: Running, submit: Submit, form: Format, times: TokenTimes
    ) -> dict[str, Any]:
        try:
            await self._submit(running, submit)
            events = []
            async for batch in running.batches(PING_S):
                events += batch
                if batch:
                    times.tokens(len(batch))
            return form.whole(running.result, events)
        finally:
            running.close()

    async def models(self) -> Response:
        """The models there are: one."""
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def model(self, name: str) -> Response:
        """One model."""
        self._require(name)
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        decoder = self._decoder
        return {
            "id": self._options.name,
            "object": "model",
            "created": 0,
            "owned_by": "specllama",
            "meta": {
                "target": shown_name(decoder.target_name),
                "draft": decoder.draft_name and shown_name(decoder.draft_name),
                "n_vocab": self._vocabulary.size,
                "n_ctx": decoder.n_ctx,
            },
        }

    async def health(self) -> Response:
        """Whether the server lives."""
        return JSONResponse({"status": "ok"})

    async def metrics(self) -> Response:
        """Figures for Prometheus."""
        text = await asyncio.to_thread(self._metrics.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def props(self) -> Response:
        """What is served, and with which settings."""
        decoder, params = self._decoder, self._options.params
        sampling = asdict(params.sampling)
        sampling["logit_bias"] = {
            str(token): bias if math.isfinite(bias) else "-inf"
            for token, bias in params.sampling.logit_bias.items()
        }
        settings = asdict(params) | {"sampling": sampling, "n_ctx": decoder.n_ctx}
        stats = await asyncio.to_thread(self._pool.stats)
        return JSONResponse(
            {
                "default_generation_settings": settings,
                "total_slots": stats.slots,
                "model_alias": self._options.name,
                "target": shown_name(decoder.target_name),
                "draft": decoder.draft_name and shown_name(decoder.draft_name),
                "drafters": list(decoder.drafters),
                "chat_template": self._vocabulary.chat_template,
                "warnings": decoder.warnings,
                "build_info": f"specllama {version('specllama')}",
            }
        )

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """A text's token ids."""
        vocabulary = self._vocabulary
        add_bos = body.add_special and vocabulary.add_bos

        def tokenized() -> list[Any]:
            ids = vocabulary.tokenize(body.content, special=body.parse_special, add_bos=add_bos)
            if not body.with_pieces:
                return ids
            return [
                {"id": token, "piece": _piece(vocabulary.piece(token, special=True))}
                for token in ids
            ]

        return await asyncio.to_thread(lambda: JSONResponse({"tokens": tokenized()}))

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        size = self._vocabulary.size

        def text() -> str:
            wrong = next((token for token in body.tokens if token >= size), None)
            if wrong is not None:
                sentence = f"Token {wrong} is not in the vocabulary (0 to {size - 1})."
                raise ApiError(400, sentence, param="tokens")
            raw = b"".join(self._vocabulary.piece(token, special=True) for token in body.tokens)
            return raw.decode("utf-8", "replace")

        return await asyncio.to_thread(lambda: JSONResponse({"content": text()}))


async def _stream(
    running: Running, form: Format, times: TokenTimes, wants_usage: bool
) -> AsyncIterator[bytes]:
    """A reply as events; an error in the middle becomes the last of them."""
    no_usage = {"usage": None} if wants_usage else {}
    try:
        start = form.start()
        if start is not None:
            yield event(start | no_usage)
        async for batch in running.batches(PING_S):
            if batch:
                times.tokens(len(batch))
                parts = (form.piece(run) for run in by_source(batch))
                yield b"".join(event(part | no_usage) for part in parts if part is not None)
            else:
                yield PING
        generation = running.result
        yield b"".join(event(part | no_usage) for part in form.end(generation))
        if wants_usage:
            yield event(form.usage(generation))
        yield DONE
    except Exception as error:
        yield event(api_error(error).body())


def _one_prompt(body: CompletionRequest) -> str | list[int]:
    """The prompt; a list of one prompt is that prompt."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise unsupported("prompt", "Only one prompt a request is served; send one for each.")
        prompt = prompt[0]
    return cast("str | list[int]", prompt)


def _piece(raw: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are only part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _wait_s(stats: PoolStats) -> int:
    """When a slot of the queue is likely to be free: requests take as long as those before."""
    ended = sum(stats.finished.values())
    mean_s = (stats.prompt_s + stats.decode_s) / ended if ended else 1.0
    return max(1, min(LONGEST_WAIT_S, math.ceil(mean_s * (stats.deferred + 1) / stats.slots)))
