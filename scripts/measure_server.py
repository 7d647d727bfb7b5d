"""What HTTP and the pool cost: the same reply from the library and from the server.

    .venv/bin/python scripts/measure_server.py

Library and server take turns (A B A B) over one loaded decoder; decoding plainly, so that both do
the same rounds. The library's time runs from its first token to its last, the server's from the
first part of its stream to the last as a client in another process sees them.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from measuring import PROMPTS, facts, median, print_facts, print_json

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.pool import Pool
from specllama.serving.app import ServerOptions, create_app
from specllama.serving.server import Server, bound_socket


def main() -> None:
    """Measure and print."""
    args = _arguments()
    if args.port is not None:
        print(stream_seconds(args.port, args.tokens))
        return
    print_facts(facts() | {"threads": args.threads})
    options = ModelOptions(n_ctx=1024, threads=args.threads)
    shares = []
    with SpeculativeDecoder(args.target, options=options) as decoder:
        library_seconds(decoder, args.tokens)
        for _ in range(args.repeat):
            library = library_seconds(decoder, args.tokens)
            server = server_seconds(decoder, args.tokens)
            shares.append(server / library - 1)
            rates = [(args.tokens - 1) / seconds for seconds in (library, server)]
            print(f"library {rates[0]:.1f} tok/s, server {rates[1]:.1f} tok/s", flush=True)
    print_json({"tokens": args.tokens, "runs": len(shares), "overhead_share": median(shares)})


def library_seconds(decoder: SpeculativeDecoder, tokens: int) -> float:
    """From the first token to the last."""
    params = GenerationParams(
        max_tokens=tokens,
        drafter="none",
        logprobs=False,
        sampling=SamplingParams(temperature=0.0),
    )
    times = [time.perf_counter() for _ in decoder.stream(PROMPTS[0], params)]
    return times[-1] - times[0]


def server_seconds(decoder: SpeculativeDecoder, tokens: int) -> float:
    """The same over HTTP, measured by a client process."""
    with serving(decoder) as port:
        command = [sys.executable, __file__, "--port", str(port), "--tokens", str(tokens)]
        return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@contextmanager
def serving(decoder: SpeculativeDecoder) -> Iterator[int]:
    """A server over the decoder, in a thread of this process as `specllama serve` has it."""
    with Pool(decoder) as pool, bound_socket("127.0.0.1", 0) as bound:
        server = Server(create_app(decoder, pool, ServerOptions("measured")), pool)
        bound.listen()
        port = bound.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join()


def stream_seconds(port: int, tokens: int) -> float:
    """From the first part with a token to the last."""
    body = {"prompt": PROMPTS[0], "max_tokens": tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    connection.request(
        "POST", "/v1/completions", json.dumps(body | {"speculative.n_max": 0}), headers
    )
    times = [
        time.perf_counter() for line in connection.getresponse() if b'"finish_reason":null' in line
    ]
    assert len(times) == tokens, f"{len(times)} parts"
    return times[-1] - times[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
