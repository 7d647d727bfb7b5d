"""llama-cpp-python's own high-level `Llama`: plain, or with its prompt look-up."""

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from peers.child import Ask, serve

PREDICTED_ON_CPU = 2
"""Its documentation's advice for processors; its default of 10 is for GPUs."""


class CountedLookup(LlamaPromptLookupDecoding):
    """The library's own look-up, counted: it is asked once a round."""

    rounds = 0
    drafted = 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        found = super().__call__(input_ids, **kwargs)
        self.rounds += 1
        self.drafted += len(found)
        return found


def load(mode: str, settings: dict[str, Any]) -> Llama:
    return Llama(
        settings["target"],
        n_ctx=settings["n_ctx"],
        n_batch=settings["n_ctx"],  # with a draft_model it fails past n_batch tokens
        n_ubatch=512,
        n_threads=settings["threads"],
        n_threads_batch=settings["threads"],
        flash_attn=settings["flash_attn"] == "on",  # by itself the library leaves it off
        draft_model=CountedLookup(num_pred_tokens=PREDICTED_ON_CPU) if mode == "lookup" else None,
        verbose=False,
    )


def start(settings: dict[str, Any]) -> Ask:
    loaded: dict[str, Llama] = {}

    def ask(wanted: dict[str, Any]) -> dict[str, Any]:
        mode = wanted["mode"]
        if mode not in loaded:
            loaded[mode] = load(mode, settings)
        return reply(loaded[mode], wanted)

    return ask


def reply(llama: Llama, wanted: dict[str, Any]) -> dict[str, Any]:
    llama.reset()
    llama.set_seed(wanted["seed"])
    lookup: Any = llama.draft_model
    if lookup is not None:
        lookup.rounds = lookup.drafted = 0
    sampling = {name: wanted[name] for name in ("top_k", "top_p", "min_p")}
    said, times = [], []
    tokens = llama.generate(wanted["ids"], temp=wanted["temperature"], **sampling)
    for token in islice(tokens, wanted["n"]):
        if token == llama.token_eos():
            break
        said.append(token)
        times.append(time.perf_counter())
    return _answer(llama, wanted["ids"], said, times, lookup)


def _answer(
    llama: Llama, prompt: list[int], said: list[int], times: list[float], lookup: Any
) -> dict[str, Any]:
    text = llama.detokenize(said, prev_tokens=prompt).decode("utf-8", "replace")
    answer: dict[str, Any] = {"text": text, "blocks": [(1, at) for at in times]}
    if lookup is not None:
        accepted = max(0, len(said) - lookup.rounds)
        answer |= {"rounds": lookup.rounds, "drafted": lookup.drafted, "accepted": accepted}
    return answer


serve(start)
