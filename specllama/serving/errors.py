"""From an exception to OpenAI's error object and an HTTP status: the one table.

ContextFull                   400 context_length_exceeded
UsageError, bad bodies        400 (what pydantic found is said with the field's name)
QueueFull                     429 queue_full, with Retry-After
PoolClosed                    503 shutting_down
OutOfMemory, EngineError, …   500 server_error
RecursionError                400: nothing but a deeply nested body makes the server recurse
anything else                 500 server_error; the traceback goes to the log, not to the client
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from specllama.errors import ContextFull, PoolClosed, QueueFull, SpecllamaError, UsageError

log = logging.getLogger("specllama.server")

INVALID = "invalid_request_error"
_DO_NOT_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """What a client is told.

    Attributes:
        param: the field at fault, as `messages[0].role`.
        code: a word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": _writable(self.message),
                "type": self.type,
                "param": self.param and _writable(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The error as a reply."""
        return JSONResponse(self.body(), self.status, self.headers)


def _writable(text: str) -> str:
    """A text that quotes the client, who may have sent halves of characters."""
    return text.encode("utf-8", "replace").decode()


def unsupported(param: str, sentence: str) -> ApiError:
    """Something of OpenAI's API that is not served: said, never passed over."""
    return ApiError(400, sentence, param=param, code="unsupported_parameter")


def timed_out(seconds: float) -> ApiError:
    """The reply took longer than the server allows."""
    return ApiError(
        504,
        f"The reply took longer than {seconds:g} seconds, which is this server's limit. "
        "Ask for fewer tokens, or start the server with a larger --timeout.",
        type="server_error",
        code="timeout",
        headers=_DO_NOT_RETRY,
    )


def shutting_down() -> ApiError:
    """The server stops."""
    return ApiError(503, "The server is shutting down.", type="server_error", code="shutting_down")


def api_error(error: BaseException) -> ApiError:
    """The row of the table for `error`."""
    match error:
        case ApiError():
            return error
        case ContextFull():
            return ApiError(400, str(error), code="context_length_exceeded")
        case QueueFull():
            return ApiError(429, str(error), type="rate_limit_error", code="queue_full")
        case PoolClosed():
            return shutting_down()
        case UsageError():
            return ApiError(400, str(error))
        case RecursionError() | HTTPException(__cause__=RecursionError()):
            return ApiError(400, "The request is nested too deeply.")
        case HTTPException():
            return _http_error(error)
        case SpecllamaError():
            log.error("%s", error)
            return ApiError(500, str(error), type="server_error", headers=_DO_NOT_RETRY)
    log.error("a request failed", exc_info=error)
    message = "The server failed on this request; its log says how. This is a bug."
    return ApiError(500, message, type="server_error", headers=_DO_NOT_RETRY)


def _http_error(error: HTTPException) -> ApiError:
    """Routing's errors, and bodies that are not JSON at all."""
    known = {404: "No such route.", 405: "This route does not take that method."}
    message = known.get(error.status_code, f"{error.detail}.")
    return ApiError(error.status_code, message, headers=error.headers)


def invalid_body(errors: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """What pydantic found, as one sentence about the field that went deepest into the body."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return ApiError(400, f"The body is not JSON: {reason} (at character {first['loc'][-1]}).")
    found = [(_path(error, body), error) for error in errors]
    param, first = max(found, key=lambda one: (len(one[0]), one[1]["type"] == "too_long"))
    if first["type"] == "value_error":
        return ApiError(400, f"{first['ctx']['error']}.", param=param or None)
    if not param:
        return ApiError(400, "The body has to be a JSON object, sent as application/json.")
    return ApiError(400, f"{param}: {first['msg']}.", param=param)


def _path(error: Mapping[str, Any], body: Any) -> str:
    """Where in the body an error is; pydantic's path also names the types it tried."""
    path, value = "", body
    for step in error["loc"][1:]:
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, dict) and step in value:
            path, value = f"{path}.{step}", value[step]
        elif isinstance(value, dict) and error["type"] == "missing":
            path, value = f"{path}.{step}", None
    return path.removeprefix(".")
