"""Are the logits of a batch the same bits as those of single tokens? (docs/exactness.md)

    .venv/bin/python scripts/measure_exactness.py [--target F.gguf] [--threads 1 2]

For every configuration: decode 16 greedy tokens one by one, then the same tokens in batches of k,
and print the largest |difference| of any logit. 0 means the same bits.
"""

import argparse
import itertools
from typing import Any

import numpy as np
from measuring import PROMPTS, facts, print_facts, print_json
from numpy.typing import NDArray

from specllama.hub.resolve import resolve
from specllama.llama.context import Context
from specllama.llama.model import Model

N_TOKENS = 16
WIDTHS = (2, 4, 7, 8, 16)
DEPTHS = (54, 554)
CONFIGURATIONS = (("on", "f16"), ("on", "bf16"), ("on", "q8_0"), ("off", "f16"))

Rows = NDArray[np.float32]


def main() -> None:
    """Measure and print one line a configuration."""
    args = _arguments()
    found = facts() | {"target": args.target}
    print_facts(found)
    path = resolve(args.target, "target").path
    print(f"{'attn':5}{'KV':6}{'repack':8}{'threads':9}{'context':9}"
          + "".join(f"k={width:<7}" for width in WIDTHS))  # fmt: skip
    table = []
    for repack in (True, False):
        with Model(path, repack=repack) as model:
            for (attention, kind), threads, depth in itertools.product(
                CONFIGURATIONS, args.threads, DEPTHS
            ):
                row = {"flash_attn": attention, "kv": kind, "repack": repack,
                       "threads": threads, "context": depth}  # fmt: skip
                differences = measure(model, attention, kind, threads, depth)
                table.append(row | {"difference": differences})
                print(f"{attention:5}{kind:6}{'yes' if repack else 'no':8}{threads:<9}{depth:<9}"
                      + "".join(f"{value:<9.3g}" for value in differences.values()),
                      flush=True)  # fmt: skip
    print_json(found | {"table": table})


def measure(model: Model, attention: str, kind: str, threads: int, depth: int) -> dict[str, float]:
    """Largest |difference| per batch width, keyed by the width."""
    context = Context(
        model,
        n_ctx=1024,
        n_batch=1024,
        threads=threads,
        threads_batch=threads,
        flash_attn=attention,
        cache_type_k=kind,
        cache_type_v=kind,
    )
    try:
        prompt = _prompt(model, depth)
        tokens, singles = _one_by_one(context, prompt)
        return {
            str(width): float(np.abs(_batched(context, prompt, tokens, width) - singles).max())
            for width in WIDTHS
        }
    finally:
        context.close()


def _prompt(model: Model, length: int) -> list[int]:
    text = " ".join(PROMPTS)
    ids: list[int] = model.vocabulary.tokenize(text, special=False, add_bos=False)
    return (ids * (length // len(ids) + 1))[:length]


def _one_by_one(context: Context, prompt: list[int]) -> tuple[list[int], Rows]:
    """16 greedy tokens, and the logits after each of them."""
    context.truncate(0, 0)
    token = int(_decode(context, prompt, 0)[-1].argmax())
    tokens, rows = [], []
    for place in range(len(prompt), len(prompt) + N_TOKENS):
        tokens.append(token)
        rows.append(_decode(context, [token], place)[0].copy())
        token = int(rows[-1].argmax())
    return tokens, np.array(rows)


def _batched(context: Context, prompt: list[int], tokens: list[int], width: int) -> Rows:
    """The logits after the same tokens, fed in batches of `width`."""
    context.truncate(0, 0)
    _decode(context, prompt, 0)
    rows = []
    for first in range(0, len(tokens), width):
        part = tokens[first : first + width]
        rows += [row.copy() for row in _decode(context, part, len(prompt) + first)]
    return np.stack(rows)


def _decode(context: Context, tokens: list[int], place: int) -> list[Any]:
    """Decode at a position; all logits for a short batch, else the last one's."""
    wanted = [len(tokens) <= N_TOKENS] * (len(tokens) - 1) + [True]
    positions = range(place, place + len(tokens))
    return context.decode(tokens, positions, [(0,)] * len(tokens), wanted)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    main()
