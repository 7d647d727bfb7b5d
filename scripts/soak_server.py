"""Many clients, some of which leave at random: is a reply lost or mixed up, does memory grow?

    .venv/bin/python scripts/soak_server.py --minutes 5 --clients 8

It starts `specllama serve` on the built-in pair and a free port. A grammar makes each reply begin
with a number of its own, so that a token of another reply shows. Every third client leaves in the
middle. Exits with 1 unless every reply that was waited for came whole and was the right one, no
sequence outlived its client, and memory stayed flat.
"""

import argparse
import http.client
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil
from measuring import facts, print_facts, print_json

QUESTIONS = (
    "Name three trees.",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "Count from one to ten.",
)
GROWTH_ALLOWED = 0.05
"""Share that memory may grow by from the second quarter of the run to the last."""


@dataclass
class Tally:
    """What became of the requests, and the server's memory over time in MB."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def main() -> int:
    """Soak and report; the exit code."""
    args = _arguments()
    print_facts(facts())
    serve = [sys.executable, "-m", "specllama", "serve", "--port", "0", "--json"]
    serve += ["-t", str(args.threads), "-c", "1024", "-np", str(args.parallel)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            about = json.loads(server.stdout.readline())
            port = int(about["url"].removesuffix("/v1").rpartition(":")[2])
            tally = soak(port, server.pid, args.minutes * 60, args.clients, args.seed)
            idle = is_idle(port)
        finally:
            server.send_signal(signal.SIGINT)
    return report(tally, idle)


def soak(port: int, pid: int, seconds: float, clients: int, seed: int) -> Tally:
    """Run the clients for a time, watching the server's memory."""
    tally, deadline = Tally(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=client, args=(port, number, random.Random(seed + number), deadline,
                                              tally))
        for number in range(clients)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    process, shown = psutil.Process(pid), time.monotonic()
    while any(thread.is_alive() for thread in threads):
        tally.memory.append(process.memory_info().rss / 1e6)
        if time.monotonic() - shown > 15:
            shown = time.monotonic()
            print(f"{tally.memory[-1]:.0f} MB, {dict(tally.ends)}", flush=True)
        time.sleep(0.5)
    return tally


def client(port: int, number: int, chance: random.Random, deadline: float, tally: Tally) -> None:
    """Ask, again and again."""
    count = 0
    while time.monotonic() < deadline:
        count += 1
        mark = f"{number}-{count}: "
        leaves_after = chance.randint(0, 12) if number % 3 == 0 or chance.random() < 0.1 else None
        body = {
            "messages": [{"role": "user", "content": chance.choice(QUESTIONS)}],
            "grammar": f'root ::= "{mark}" [a-z ,.]{{1,{chance.randint(1, 60)}}}',
            "max_tokens": 80,
            "stream": leaves_after is not None or chance.random() < 0.5,
            "seed": chance.choice([None, 7]),
            "speculative.n_max": chance.choice([0, 4, None]),
        }
        try:
            end = ask(port, body, mark, leaves_after)
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
            end = f"lost ({type(error).__name__})"
        tally.ends[end.partition(" ")[0]] += 1
        if end.startswith(("lost", "mixed", "refused")):
            tally.wrong.append(f"{mark}{end}")


def ask(port: int, body: dict[str, Any], mark: str, leaves_after: int | None) -> str:
    """One request; how it ended, in words."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status == 429:
            time.sleep(0.2)
            return "queue-full"
        if response.status != 200:
            return f"refused ({response.status}: {response.read()[:200]!r})"
        if not body["stream"]:
            return judged(json.loads(response.read())["choices"][0]["message"]["content"], mark)
        text = ""
        for lines, line in enumerate(response):
            if lines == leaves_after:
                return "left"
            if line == b"data: [DONE]\n":
                return judged(text, mark)
            if line.startswith(b"data: "):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        return "lost (the stream ended early)"
    finally:
        connection.close()


def judged(text: str, mark: str) -> str:
    """Whether a reply is the one that was asked for."""
    whole = re.fullmatch(re.escape(mark) + r"[a-z ,.]+", text)
    return "whole" if whole else f"mixed ({text!r})"


def is_idle(port: int) -> bool:
    """Whether nothing runs any more, a moment after the last client has gone."""
    time.sleep(2)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return all(f"specllama:requests_{name} 0.0" in text for name in ("processing", "deferred"))


def report(tally: Tally, idle: bool) -> int:
    """Print the figures; 0 if all is as it should be."""
    quarter = max(1, len(tally.memory) // 4)
    early = statistics.median(tally.memory[quarter : 2 * quarter] or tally.memory)
    late = statistics.median(tally.memory[-quarter:])
    growth = late / early - 1
    for line in tally.wrong[:10]:
        print(line)
    good = not tally.wrong and idle and growth < GROWTH_ALLOWED and tally.ends["whole"] > 0
    print_json(
        {
            "ends": dict(tally.ends),
            "wrong": len(tally.wrong),
            "idle_afterwards": idle,
            "memory_mb": [round(early), round(late)],
            "growth": round(growth, 4),
            "good": good,
        }
    )
    return 0 if good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
