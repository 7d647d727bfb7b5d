"""`specllama serve`: an OpenAI-compatible server over one model and its draft."""

from __future__ import annotations

import importlib.util
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli import model_flags
from specllama.cli.generate_stream import Meter
from specllama.cli.model_flags import ModelFlags, Run, with_model_flags
from specllama.cli.output import out
from specllama.errors import UsageError

if TYPE_CHECKING:
    import socket

    from specllama.decoder import SpeculativeDecoder
    from specllama.serving.app import ServerOptions

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


@with_model_flags
def serve(
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")
    ] = 8080,
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="SPECLLAMA_API_KEY",
            show_envvar=False,
            help="Ask clients for this key (or SPECLLAMA_API_KEY).",
            show_default=False,
        ),
    ] = "",
    alias: Annotated[
        str | None,
        typer.Option("-a", "--alias", metavar="NAME", help="What clients call the model."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors", metavar="ORIGIN", help="A web origin whose pages may call (repeatable; *)."
        ),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option("-np", "--parallel", metavar="N", min=1, help="Replies at the same time."),
    ] = 4,
    max_queue: Annotated[
        int, typer.Option("--max-queue", metavar="N", min=0, help="Requests that may wait.")
    ] = 16,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, help="Longest reply in seconds.")
    ] = 600.0,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Log requests, and what is ignored in them.")
    ] = False,
    *,
    flags: ModelFlags,
) -> None:
    """Serve a model over HTTP: OpenAI's API, a chat page.

    Ctrl-C lets replies under way end for 5 seconds; a second one does not.
    """
    _require_server()
    run = model_flags.resolve(flags)
    run = replace(run, options=replace(run.options, parallel=parallel))
    _start_log(verbose)
    from specllama.serving.limits import is_loopback
    from specllama.serving.server import bound_socket

    with bound_socket(host, port) as bound:
        if not is_loopback(host) and not api_key:
            out.warn(f"Whoever reaches {host} can use this server: --api-key asks for a key.")
        with Meter() as meter:
            decoder = model_flags.open_decoder(run, meter.update)
        with decoder:
            options = _options(run, decoder, alias, api_key, cors or [], timeout, host)
            _run(decoder, options, bound, host, max_queue)


def _require_server() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The server needs packages that are not installed: {', '.join(missing)}.",
            "Run: pip install 'specllama[server]'",
        )


def _start_log(verbose: bool) -> None:
    """To stderr: what goes wrong; with `verbose` the requests too."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("specllama.server").setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.INFO if verbose else logging.WARNING)


def _options(
    run: Run,
    decoder: SpeculativeDecoder,
    alias: str | None,
    api_key: str,
    cors: list[str],
    timeout: float,
    host: str,
) -> ServerOptions:
    from specllama.serving.app import ServerOptions, shown_name
    from specllama.serving.limits import is_loopback

    return ServerOptions(
        name=alias or shown_name(decoder.target_name),
        params=run.params,
        system=run.system,
        api_key=api_key,
        origins=tuple(cors),
        timeout_s=timeout,
        local_names=is_loopback(host),
    )


def _run(
    decoder: SpeculativeDecoder,
    options: ServerOptions,
    bound: socket.socket,
    host: str,
    max_queue: int,
) -> None:
    from specllama.pool import Pool
    from specllama.serving.app import create_app
    from specllama.serving.server import Server, url_of

    with Pool(decoder, max_queue=max_queue) as pool:
        server = Server(create_app(decoder, pool, options), pool)
        bound.listen()
        _announce(url_of(bound, host), decoder, options)
        server.run(sockets=[bound])


def _announce(url: str, decoder: SpeculativeDecoder, options: ServerOptions) -> None:
    """Where the server is: one line of JSON for programs, some for people."""
    data = {
        "url": f"{url}/v1",
        "model": options.name,
        "target": decoder.target_name,
        "draft": decoder.draft_name,
    }
    if out.mode == "json":
        out.event(data)
        return
    draft = decoder.draft_name or "none"
    out.line(f"{url}/v1  target={decoder.target_name}  draft={draft}")
    sys.stdout.flush()
    key = " -H 'Authorization: Bearer KEY'" if options.api_key else ""
    out.hint(f"A chat page is at {url}/ and this asks for a reply:")
    out.hint(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        """-d '{"messages":[{"role":"user","content":"Hello"}]}'"""
    )
