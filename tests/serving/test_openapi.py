"""The OpenAPI description drives the server: whatever is sent, the answer is one it describes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from specllama.serving.app import ServerOptions, create_app
from tests.serving.fakes import FakeDecoder, FakePool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
POOL = FakePool(slots=4, max_queue=1000)
APP = create_app(FakeDecoder(), POOL, ServerOptions("fake", local_names=False))  # type: ignore[arg-type]
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


@pytest.fixture(autouse=True)
def no_sequence_is_left() -> Iterator[None]:
    yield
    POOL.wait_until_idle()


@SCHEMA.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_request(case: Any) -> None:
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
