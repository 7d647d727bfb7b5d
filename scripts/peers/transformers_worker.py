"""transformers' `generate` on the same weights, dequantised: plain, assisted, prompt look-up.

Its speed is torch's, so that only the ratio to its own plain decoding says anything about drafts.
Its samplers divide by the temperature before they truncate; llama.cpp's do it after.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peers.child import Ask, serve

LOOKED_UP = 10
"""Tokens of a prompt look-up; its documentation's example."""


class Clock:
    """A streamer that notes how many tokens came when; the prompt comes first."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, float]] = []
        self._prompt = True

    def put(self, ids: torch.Tensor) -> None:
        if not self._prompt:
            self.blocks.append((ids.numel(), time.perf_counter()))
        self._prompt = False

    def end(self) -> None:
        pass


def load(file: str) -> Any:
    path = Path(file)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


def start(settings: dict[str, Any]) -> Ask:
    torch.set_num_threads(settings["threads"])
    target = Path(settings["target"])
    tokenizer = AutoTokenizer.from_pretrained(target.parent, gguf_file=target.name)
    model = load(settings["target"])
    drafting: dict[str, dict[str, Any]] = {"lookup": {"prompt_lookup_num_tokens": LOOKED_UP}}
    if settings["draft"] is not None:
        drafting["assisted"] = {"assistant_model": load(settings["draft"])}

    def ask(wanted: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(wanted["seed"])
        clock, ids = Clock(), torch.tensor([wanted["ids"]])
        with torch.inference_mode():
            said = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=wanted["n"],
                streamer=clock,
                pad_token_id=tokenizer.eos_token_id,
                **_sampling(wanted),
                **drafting.get(wanted["mode"], {}),
            )[0, ids.shape[1] :].tolist()
        text = tokenizer.decode(said, skip_special_tokens=True)
        rounds = len(clock.blocks)
        accepted = max(0, len(said) - rounds)
        return {"text": text, "blocks": clock.blocks, "rounds": rounds, "accepted": accepted}

    return ask


def _sampling(wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted["temperature"] == 0:
        return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    names = ("temperature", "top_k", "top_p", "min_p")
    return {"do_sample": True, **{name: wanted[name] for name in names}}


serve(start)
