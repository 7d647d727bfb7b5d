"""What several chats at once gain over one after another, and how long a newcomer waits.

    python scripts/measure_parallel.py                  # the built-in pair
    python scripts/measure_parallel.py --target T.gguf --draft D.gguf

The arms take turns in one process (A B A B). The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from measuring import facts, median, print_facts, print_json

from specllama import GenerationParams, Message, ModelOptions, Pool, SpeculativeDecoder, Ticket

QUESTIONS = (
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper.",
    "Explain how a bicycle stays upright.",
    "List the steps to make pancakes.",
    "What is a hash table?",
    "Describe a thunderstorm at sea.",
    "How do vaccines work?",
    "Write a Python function that counts words.",
)
SHORT = "Say hello."


def main() -> None:
    """Measure and print."""
    asked = arguments()
    print_facts(facts())
    options = ModelOptions(n_ctx=1024, parallel=asked.chats, threads=asked.threads)
    with SpeculativeDecoder(asked.target, asked.draft, options=options) as decoder:
        found = {
            drafter: gain(decoder, asked.chats, asked.tokens, asked.repeats, drafter)
            for drafter in ("none", "auto")
        }
        waits = [rounds_to_first_token(decoder) for _ in range(asked.repeats)]
    for drafter, figures in found.items():
        print(f"drafter {drafter}: {figures}")
    print(f"rounds to the first token of a newcomer: {waits}")
    print_json(facts() | {"chats": asked.chats, "gain": found, "rounds_to_first_token": waits})


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--chats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


def gain(
    decoder: SpeculativeDecoder, chats: int, tokens: int, repeats: int, drafter: str
) -> dict[str, Any]:
    """Aggregate tokens a second, one chat after another and all at once."""
    one_by_one, together = [], []
    ask(decoder, chats, tokens, drafter, together=True)  # warms up, and teaches the costs
    for _ in range(repeats):
        one_by_one.append(ask(decoder, chats, tokens, drafter, together=False))
        together.append(ask(decoder, chats, tokens, drafter, together=True))
    return {
        "one_by_one_tok_s": median(one_by_one),
        "together_tok_s": median(together),
        "gain": median(b / a for a, b in zip(one_by_one, together, strict=True)),
    }


def ask(
    decoder: SpeculativeDecoder, chats: int, tokens: int, drafter: str, *, together: bool
) -> float:
    """Tokens a second over all chats, prompts included; nothing is cached before."""
    decoder.forget()
    params = GenerationParams(max_tokens=tokens, seed=1, drafter=drafter, logprobs=False)
    with Pool(decoder) as pool:
        started = time.perf_counter()
        tickets: list[Ticket] = []
        for question in QUESTIONS[:chats]:
            tickets.append(pool.submit_chat([Message("user", question)], params))
            if not together:
                tickets[-1].wait()
        said = sum(len(ticket.finish().tokens) for ticket in tickets)
        return said / (time.perf_counter() - started)


def rounds_to_first_token(decoder: SpeculativeDecoder) -> int:
    """Rounds of a reply under way between a newcomer's arrival and its first token."""
    decoder.forget()
    plain = GenerationParams(max_tokens=120, seed=1, drafter="none", logprobs=False)
    seen: list[str] = []
    with Pool(decoder) as pool:
        first = pool.submit_chat(
            [Message("user", QUESTIONS[1])], plain, on_event=lambda event: seen.append("first")
        )
        while len(seen) < 16:
            time.sleep(0.001)
        before = len(seen)
        second = pool.submit_chat(
            [Message("user", SHORT)], plain, on_event=lambda event: seen.append("second")
        )
        second.wait()
        first.cancel()
    return seen.index("second") - before


if __name__ == "__main__":
    main()
