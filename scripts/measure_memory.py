"""Resident memory of a pair: after loading, and after a generation that fills the context.

    .venv/bin/python scripts/measure_memory.py [--target F.gguf] [--draft none] [--ctx 2048]

The budget is 1.1 x (weights of target and draft + KV caches of both) + 150 MB.
"""

import argparse
import os
from typing import Any

import psutil
from measuring import PROMPTS, facts, print_facts, print_json

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.hub.gguf import read
from specllama.hub.memory import estimate
from specllama.hub.resolve import resolve

MB = 1e6
ALLOWANCE = 150 * MB
MARGIN = 1.1


def main() -> None:
    """Measure and print."""
    args = _arguments()
    found = facts() | {"target": args.target, "draft": args.draft, "n_ctx": args.ctx}
    print_facts(found)
    draft = None if args.draft == "none" else args.draft
    options = ModelOptions(n_ctx=args.ctx, threads=args.threads)
    before = _resident()
    with SpeculativeDecoder(args.target, draft, options=options) as decoder:
        models = [(args.target, "target")] + ([(draft, "draft")] if draft else [])
        parts = [_needs(name, role, decoder.n_ctx) for name, role in models]
        needed = sum(part["weights"] + part["kv_cache"] for part in parts)
        figures = {
            "python_mb": before,
            "loaded_mb": _resident(),
            "after_generation_mb": _fill(decoder),
            "needed_mb": needed / MB,
            "budget_mb": (MARGIN * needed + ALLOWANCE) / MB,
        }
    figures = {name: round(value, 1) for name, value in figures.items()}
    print("\n".join(f"{name:22}{value:9.1f}" for name, value in figures.items()))
    within = figures["after_generation_mb"] <= figures["budget_mb"]
    print(f"within budget: {'yes' if within else 'NO'}\n")
    print_json(found | figures | {"within_budget": within})


def _needs(name: str, role: Any, n_ctx: int) -> dict[str, int]:
    memory = estimate(read(resolve(name, role).path), n_ctx)
    return {"weights": memory.weights, "kv_cache": memory.kv_cache}


def _fill(decoder: SpeculativeDecoder) -> float:
    """Generate until the context is full, going on wherever the model ends; the highest MB seen."""
    text, highest = PROMPTS[0], 0.0
    params = GenerationParams(sampling=SamplingParams(temperature=1.5, top_k=0, min_p=0.0))
    while True:
        result = decoder.generate(text, params)
        highest = max(highest, _resident())
        if result.finish_reason == "context":
            return highest
        text += f"{result.text}\nAnd then"


def _resident() -> float:
    return float(psutil.Process(os.getpid()).memory_info().rss) / MB


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft", help="a model, or none")
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    parser.add_argument("--ctx", type=int, default=2048)
    return parser.parse_args()


if __name__ == "__main__":
    main()
