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


def start(mode: str, settings: dict[str, Any]) -> Ask:
    torch.set_num_threads(settings["threads"])
    target = Path(settings["target"])
    tokenizer = AutoTokenizer.from_pretrained(target.parent, gguf_file=target.name)
    model = load(settings["target"])
    drafting: dict[str, Any] = {}
    if mode == "assisted":
        drafting = {"assistant_model": load(settings["draft"])}
    elif mode == "lookup":
        drafting = {"prompt_lookup_num_tokens": 10}

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
                **drafting,
            )[0, ids.shape[1] :].tolist()
        text = tokenizer.decode(said, skip_special_tokens=True)
        answer: dict[str, Any] = {"text": text, "blocks": clock.blocks}
        if mode != "plain":
            rounds = len(clock.blocks)
            answer |= {"rounds": rounds, "accepted": max(0, len(said) - rounds)}
        return answer

    return ask


def _sampling(wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted["temperature"] == 0:
        return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    names = ("temperature", "top_k", "top_p", "min_p")
    return {"do_sample": True, **{name: wanted[name] for name in names}}


serve(start)
