"""Copy-heavy requests: how much faster drafters without a model make them, and the most they could.

    .venv/bin/python scripts/measure_copies.py
    .venv/bin/python scripts/measure_copies.py --threads 1 --tokens 128 --repeat 1

Three requests at temperature 0, whose answers repeat a text of the prompt but for small changes: a
file is edited, a JSON document repeated with one change, a page corrected. How much of the answer
the model really copied is told ("copied"). Plain decoding and
drafting take turns; each run starts from empty caches. First the cost of a decode by its number of
tokens: tokens over cost is what a perfect draft of that length would give.
"""

import argparse
import difflib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from measuring import facts, median, print_facts, print_json

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.results import Generation
from specllama.text.chat import Message

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
FILE = """\
<!DOCTYPE html>
<html>
<head>
  <title>Weather station</title>
  <style>
    body { background: white; color: black; font-family: serif; }
    h1 { color: red; font-size: 24px; }
    p { margin: 8px; padding: 4px; }
    table { border: 1px solid gray; width: 100%; }
  </style>
</head>
<body>
  <h1>Weather station</h1>
  <p>This page shows what the station on the hill has measured today.</p>
  <table>
    <tr><th>Time</th><th>Temperature</th><th>Rain</th></tr>
    <tr><td>06:00</td><td>11.2</td><td>0.0</td></tr>
    <tr><td>09:00</td><td>14.8</td><td>0.0</td></tr>
    <tr><td>12:00</td><td>18.1</td><td>0.4</td></tr>
    <tr><td>15:00</td><td>19.5</td><td>1.2</td></tr>
    <tr><td>18:00</td><td>16.3</td><td>0.0</td></tr>
  </table>
  <p>Questions? Write to Martha Jones, Hill Street 12.</p>
</body>
</html>"""
SETTINGS = {
    "name": "weather station",
    "version": "1.4.2",
    "color": "red",
    "owner": "Martha Jones",
    "email": "martha@example.org",
    "city": "Leeds",
    "street": "12 Hill Street",
    "phone": "555-0134",
    "latitude": 51.2,
    "longitude": 7.4,
    "height": 312,
    "interval": 60,
    "sensors": ["temperature", "humidity", "pressure", "rain"],
    "host": "192.168.1.20",
    "port": 8080,
    "timeout": 30,
    "retries": 5,
    "folder": "/var/lib/station",
    "format": "csv",
    "keep_days": 90,
    "backup": "weekly",
    "language": "English",
    "currency": "pound",
    "time_zone": "Europe/London",
    "first_day": "Monday",
    "font": "large",
    "brightness": 80,
    "contrast": 50,
    "sound": "off",
    "alarm": "on",
    "contact": "Ben Carter",
    "company": "Hilltop Weather Ltd",
    "founded": 1987,
    "license": "MIT",
    "repository": "https://example.org/station",
    "theme": "dark",
    "units": "metric",
    "decimals": 1,
    "rounding": "half up",
    "notify": ["ben@example.org", "ada@example.org"],
    "battery": "lithium",
    "capacity": 2600,
    "solar": True,
    "antenna": "outside",
    "roof": "flat",
    "fence": False,
    "visitors": "nine to six",
}
PAGE = (
    "Last summer we travelled to the coast with two friends. The weather were fine, and we "
    "swam every morning before breakfast. In the afternoon we walked along the cliffs and "
    "looked for birds. One day we hired a small boat and rowed to the island, where an old "
    "lighthouse stands. The keeper showed us the lamp and told us how ships used to find "
    "their way in the fog. On the way back the wind grew stronger, and we had to row hard. "
    "We was tired when we reached the harbour, but nobody complained. In the evening we "
    "cooked fish over a fire and talked about the journey. The next day it rained, so we "
    "stayed in the house, read books and played cards. Before we left, we bought a picture "
    "of the lighthouse in the village shop. It hang now in our kitchen and reminds us of "
    "the summer. On the last morning we got up early and went to the market. A farmer sold "
    "apples, cheese and honey from a wooden cart, and his daughter played the violin beside "
    "it. We bought a jar of honey for my grandmother, who likes it in her tea. Then we "
    "carried our bags to the station and waited for the train. It were late, as always, but "
    "the sun was shining and nobody was in a hurry. We sat on a bench, ate the apples and "
    "watched the boats in the harbour."
)


def _document() -> str:
    """The settings as JSON, a line each."""
    lines = (f'  "{key}": {json.dumps(value)}' for key, value in SETTINGS.items())
    return "{\n" + ",\n".join(lines) + "\n}"


TASKS = {
    "edit a file": (
        "Change the color in this file from red to blue. Answer with the whole file.\n\n"
        f"```html\n{FILE}\n```"
    ),
    "repeat a JSON": (
        f'```json\n{_document()}\n```\n\nRewrite this JSON with "York" instead of "Leeds".'
    ),
    "correct a page": (f"Correct the grammar of this text. Answer with the whole text.\n\n{PAGE}"),
}


def main() -> None:
    """Measure and print."""
    args = _arguments()
    known = facts()
    print_facts(known)
    options = ModelOptions(n_ctx=4096, threads=args.threads, threads_batch=args.threads)
    with SpeculativeDecoder(args.target, options=options) as decoder:
        costs = decode_costs(decoder)
        tasks = {name: _task(decoder, name, args) for name in TASKS}
    print_json(known | {"load_after": facts()["load_average"], "costs": costs, "tasks": tasks})


def decode_costs(decoder: SpeculativeDecoder) -> dict[int, float]:
    """Median milliseconds of a decode by its number of tokens, all with logits."""
    context = decoder._target.context
    ids = decoder.vocabulary.tokenize(PAGE, special=False, add_bos=False)[:100]
    context.decode(ids, range(len(ids)), [(0,)] * len(ids), [False] * len(ids))
    found = {}
    for size in SIZES:
        seconds = []
        for _ in range(12):
            before = context.seconds
            places = range(len(ids), len(ids) + size)
            context.decode(ids[:1] * size, places, [(0,)] * size, [True] * size)
            seconds.append(context.seconds - before)
            context.truncate(0, len(ids))
        found[size] = median(1e3 * s for s in seconds)
        print(f"{size:>3} tokens {found[size]:>8.2f} ms, {size * found[1] / found[size]:.2f} x")
    context.drop(0)
    return found


def _task(decoder: SpeculativeDecoder, name: str, args: argparse.Namespace) -> dict[str, Any]:
    prompt = [Message("user", TASKS[name])]
    plain = GenerationParams(
        max_tokens=args.tokens,
        sampling=SamplingParams(temperature=0.0),
        seed=1,
        drafter="none",
        logprobs=False,
    )
    ways = {"plain": plain, "drafted": _drafted(plain, args)}
    runs: dict[str, list[Generation]] = {way: [] for way in ways}
    _run(decoder, prompt, ways["drafted"])
    for turn in range(args.repeat):
        for way in sorted(ways, reverse=bool(turn % 2)):
            runs[way].append(_run(decoder, prompt, ways[way]))
    rate = {
        way: median(r.timings.decode_tok_s or 0.0 for r in found) for way, found in runs.items()
    }
    last = runs["drafted"][-1]
    found = {
        "tokens": len(last.tokens),
        "plain_tok_s": rate["plain"],
        "drafted_tok_s": rate["drafted"],
        "speedup": round(rate["drafted"] / rate["plain"], 3),
        "tokens_per_round": round(last.spec.tokens_per_round, 2),
        "rounds": last.spec.rounds,
        "drafted": last.spec.drafted,
        "same_text": last.text == runs["plain"][-1].text,
        "copied": round(_copied(TASKS[name], last.text), 3),
        "by_source": {key: part.accepted for key, part in last.spec.by_source.items()},
    }
    print(name, found, flush=True)
    if args.show:
        print(last.text)
    return found


def _copied(source: str, text: str) -> float:
    """The share of a text that is in its source, in pieces of a dozen characters and more."""
    blocks = difflib.SequenceMatcher(None, source, text, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= 12) / max(1, len(text))


def _drafted(plain: GenerationParams, args: argparse.Namespace) -> GenerationParams:
    changes: dict[str, Any] = {"drafter": args.drafter, "copy_input": True}
    if args.draft_max is not None:
        changes["draft_max"] = args.draft_max
    return replace(plain, **changes)


def _run(
    decoder: SpeculativeDecoder, prompt: Sequence[Message], params: GenerationParams
) -> Generation:
    decoder.forget()
    return decoder.chat(prompt, params)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=700)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--drafter", default="text+suffix")
    parser.add_argument("--draft-max", type=int)
    parser.add_argument("--show", action="store_true", help="print the answers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
