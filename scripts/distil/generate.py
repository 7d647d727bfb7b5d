"""The target writes the training text: many chats at once, in lockstep, at several temperatures.

Self-synthesis as in Magpie (Xu et al., arXiv 2406.08464), steered by seeds: a turn's request is the
target's own after a few given first words or none, a seed prompt around a passage that the target
wrote before, or a whole seed prompt.  Each chat is a row of fixed length; a finished answer is
followed by another turn.  One decode step is one CUDA graph a length bucket, with all state on the
device.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .labels import Rows, pack_ids, top_k_log_probs
from .model import Block, Llama

TEMPERATURES = (0.0, 0.7, 1.0)
SHARES = (0.5, 0.25, 0.25)
ASKING = 1
"""Index of the temperature of requests: at 1.0 a small target's are often gibberish."""
ANSWER, USER = 0, 1
FIELDS = tuple(f.name for f in fields(Rows))
PASSAGE_WAVES = (0, 1, 0, 0)
"""The passage class (0 prose, 1 code: prompts.WRITERS) of each of the first waves."""
STARTS_SHARE = 0.6
"""Share of the prose passages that go on from a seed beginning; answers are the others."""
MASKED_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
BUCKET = 64
ANSWER_TOKENS = (96, 224)
REQUEST_TOKENS = (64, 224)
QUEUE = 288
"""Room for the forced tokens of a turn."""
REQUEST_SHARE = 0.1
"""Share of a self-written request's positions that are trained on (drafts never run there)."""
POOL_SHARES = {"openers": 0.62, "frames": 0.2, "prompts": 0.18}
PLAIN_SHARE, SYSTEM_SHARE = 0.06, 0.1


class Seeds:
    """The token lists that tokens.py wrote."""

    def __init__(self, path: Path) -> None:
        stored = np.load(path)
        self.n_bos = len(stored["bos"]) if "bos" in stored else 0
        self.to_answer = stored["to_answer"].tolist()
        self.to_user = stored["to_user"].tolist()
        self.end_tokens = stored["end_tokens"].tolist()
        self.sentence_ends = stored["sentence_ends"]
        self.prompt_class = stored["prompt_class"]
        self.wrap_class = stored["wrap_class"]
        self.heads, self.prompts, self.openers, self.starts, self.before, self.after = (
            np.split(stored[f"{name}_ids"], stored[f"{name}_ends"][:-1])
            for name in ("heads", "prompts", "openers", "starts", "before", "after")
        )


@dataclass(slots=True)
class Pool:
    """Turns to choose from: the forced tokens of each, and who writes next."""

    tokens: Tensor  # [turns, widest], int64
    lengths: Tensor  # [turns]
    phase: Tensor  # [turns]


def make_pool(
    seeds: Seeds, requests: list[np.ndarray], openers: list[np.ndarray], device: torch.device
) -> Pool:
    """One turn a request, and one an opener, whose request the target finishes."""
    opening, closing = seeds.to_user[1:], seeds.to_answer
    turns = [[*opening, *request, *closing] for request in requests]
    turns += [[*opening, *first_words] for first_words in openers]
    lengths = np.array([len(turn) for turn in turns])
    tokens = np.zeros((len(turns), lengths.max()), np.int64)
    tokens[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(turns)
    phase = np.array([ANSWER] * len(requests) + [USER] * len(openers))
    return Pool(*(torch.from_numpy(a).to(device) for a in (tokens, lengths, phase)))


class Writer:
    """Writes `batch` rows of `length` tokens a wave; `set_pool` comes before each."""

    def __init__(
        self,
        teacher: Llama,
        seeds: Seeds,
        batch: int,
        length: int,
        turns: int,
        k: int,
        compiled: bool,
    ) -> None:
        self.teacher, self.seeds, self.batch, self.length = teacher, seeds, batch, length
        self.device = teacher.head.device
        self.cuda = self.device.type == "cuda"
        shape, dtype = teacher.shape, teacher.head.dtype
        cache = (shape.layers, 2, batch, shape.kv_heads, length, shape.head_dim)
        self.cache = torch.zeros(cache, dtype=dtype, device=self.device)
        self.rows = empty_rows(batch, length, k, shape.vocab, self.device)
        self.text = torch.zeros(batch, length + 1, dtype=torch.int32, device=self.device)
        self.rows.tokens = self.text[:, :length]
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.widest = max(len(head) for head in seeds.heads) + QUEUE
        self.state = {
            name: torch.zeros(batch, dtype=torch.long, device=self.device)
            for name in ("token", "place", "forced", "phase", "heat", "left")
        }
        self.queue = torch.zeros(batch, self.widest, dtype=torch.long, device=self.device)
        places = torch.zeros(turns, self.widest, dtype=torch.long, device=self.device)
        self.pool = Pool(places, places[:, 0].clone(), places[:, 0].clone())
        self.constants = {
            "end": torch.tensor(seeds.end_tokens, device=self.device),
            "answer": torch.tensor(seeds.to_answer[1:], device=self.device),
            "heat": torch.tensor(TEMPERATURES, device=self.device),
            "shares": torch.tensor(SHARES, device=self.device).cumsum(0)[:-1],
        }
        wrap: Callable = torch.compile if compiled else lambda f, **_: f
        self.project = wrap(Block.project, dynamic=False)
        self.finish = wrap(Block.finish, dynamic=False)
        self.sample = wrap(sample, dynamic=False)
        self.top_k = wrap(top_k_log_probs, dynamic=False)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def set_pool(self, pool: Pool) -> None:
        """Draw as many random turns as the captured graphs have room for."""
        pick = torch.randint(len(pool.lengths), self.pool.lengths.shape, device=self.device)
        width = min(self.widest, pool.tokens.shape[1])
        self.pool.tokens.zero_()
        self.pool.tokens[:, :width] = pool.tokens[pick, :width]
        self.pool.lengths.copy_(pool.lengths[pick])
        self.pool.phase.copy_(pool.phase[pick])

    def start(self, plain_share: float) -> None:
        """Begin a new wave: a system block and a turn a row, or the beginning of a plain text."""
        starts, sizes = self._starts()
        kind, chance = self._random(len(self.pool.lengths)), torch.rand(self.batch)
        head = torch.zeros(self.batch, dtype=torch.long)
        systems = len(self.seeds.heads)
        head[chance < SYSTEM_SHARE] = 1 + kind.cpu()[chance < SYSTEM_SHARE] % (systems - 1)
        is_plain = chance > 1 - plain_share
        head[is_plain] = systems + kind.cpu()[is_plain] % (len(starts) - systems)
        head, is_plain = head.to(self.device), is_plain.to(self.device)
        size, opening = sizes[head][:, None], len(self.seeds.to_user) - 1
        column = torch.arange(self.widest, device=self.device)[None]
        turn = self.pool.tokens[kind].gather(1, (opening + column - size).clamp(0, self.widest - 1))
        self.queue.copy_(torch.where(column < size, starts[head], turn))
        s = self.state
        turn_size = torch.where(is_plain, 0, self.pool.lengths[kind] - opening)
        s["forced"].copy_(size[:, 0] + turn_size)
        s["phase"].copy_(torch.where(is_plain, ANSWER, self.pool.phase[kind]))
        s["place"].fill_(1)
        s["token"].copy_(self.queue[:, 0])
        heat = self._heats()
        s["heat"].copy_(torch.where(is_plain & (heat == 0), ASKING, heat))
        s["left"].copy_(self._budget(s["phase"]))
        self.position.zero_()
        self.text[:, 0] = self.queue[:, 0]

    def _starts(self) -> tuple[Tensor, Tensor]:
        """System blocks, then beginnings of plain texts, padded to the queue's width."""
        starts = [*self.seeds.heads, *self.seeds.starts]
        sizes = np.array([len(start) for start in starts])
        table = np.zeros((len(starts), self.widest), np.int64)
        table[np.arange(self.widest) < sizes[:, None]] = np.concatenate(starts)
        return torch.from_numpy(table).to(self.device), torch.from_numpy(sizes).to(self.device)

    def wave(self, plain_share: float = PLAIN_SHARE) -> Rows:
        """Fill `rows` (reused by the next wave) with finished text and its labels."""
        self.start(plain_share)
        for step in range(self.length):
            bucket = min(self.length, (step // BUCKET + 1) * BUCKET)
            if self.cuda:
                self._graph(bucket).replay()
            else:
                self._step(bucket)
        return self.rows

    def capture(self) -> None:
        """Warm up, then record one graph a bucket."""
        for bucket in range(BUCKET, self.length + 1, BUCKET):
            self._graph(bucket)

    def _graph(self, bucket: int) -> torch.cuda.CUDAGraph:
        if bucket not in self.graphs:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._step(bucket)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            memory = next(iter(self.graphs.values())).pool() if self.graphs else None
            with torch.cuda.graph(graph, pool=memory):
                self._step(bucket)
            self.graphs[bucket] = graph
        return self.graphs[bucket]

    @torch.no_grad()
    def _step(self, bucket: int) -> None:
        logits = self._logits(bucket)
        ids, log_probs = self.top_k(logits, self.rows.ids.shape[-1])
        at = self.position
        self.rows.ids.index_copy_(1, at, pack_ids(ids, logits.shape[1])[:, None])
        self.rows.log_probs.index_copy_(1, at, log_probs.half()[:, None])
        self._advance(logits)

    def _logits(self, bucket: int) -> Tensor:
        """One decode step of every row at the common position."""
        teacher, at = self.teacher, self.position
        x = F.embedding(self.state["token"], teacher.token_embd.weight)[:, None]
        rope = teacher.rope.index_select(1, at)
        seen = torch.arange(bucket, device=self.device) <= at
        mask = torch.zeros(bucket, dtype=x.dtype, device=self.device)
        mask = mask.masked_fill(~seen, float("-inf")).expand(1, 1, 1, bucket)
        for block, cache in zip(teacher.blk, self.cache, strict=True):
            q, k, v = self.project(block, x, rope)
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            x = self.finish(block, x, self._attend(q, cache, mask))
        return teacher.output_norm(x)[:, 0] @ teacher.head.T

    def _attend(self, q: Tensor, cache: Tensor, mask: Tensor) -> Tensor:
        """Heads that share keys are queries of one another's length: no copies of the cache."""
        batch, heads, _, size = q.shape
        kv = self.teacher.shape.kv_heads
        q = q.reshape(batch, kv, heads // kv, size)
        k, v = (part[:, :, : mask.shape[-1]] for part in cache)
        mask = mask.expand(batch, kv, heads // kv, -1)
        with sdpa_kernel(MASKED_KERNELS):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.reshape(batch, 1, heads * size)

    def _advance(self, logits: Tensor) -> None:
        """Choose the next token of each row and move its turn on."""
        s, c, at = self.state, self.constants, self.position
        free, asking = s["place"] >= s["forced"], s["phase"] == USER
        heat = torch.where(asking, ASKING, s["heat"])
        forced = self.queue.gather(1, s["place"].clamp_max(self.widest - 1)[:, None])[:, 0]
        token = torch.where(free, self.sample(logits, c["heat"][heat]), forced)
        s["left"].sub_(free.long())
        ended = free & ((token[:, None] == c["end"]).any(1) | (s["left"] <= 0))
        asked, answered = ended & asking, ended & ~asking
        token = torch.where(asked, self.seeds.to_answer[0], token)
        token = torch.where(answered, self.seeds.to_user[0], token)
        lucky = torch.rand(self.batch, device=self.device) < REQUEST_SHARE
        self.rows.chosen.index_copy_(1, at, (free & (~asking | lucky))[:, None])
        self.rows.heat.index_copy_(1, at, heat.to(torch.uint8)[:, None])
        self.text.index_copy_(1, at + 1, token.int()[:, None])
        s["token"].copy_(token)
        s["place"].add_((~free).long())
        self._turn(asked, answered)
        at.add_(1)

    def _turn(self, asked: Tensor, answered: Tensor) -> None:
        """Queue the template's text after a request, or a whole new turn after an answer."""
        s, answer = self.state, self.constants["answer"]
        turn = self._random(len(self.pool.lengths))
        ended = asked | answered
        queue = torch.where(answered[:, None], self.pool.tokens[turn], self.queue)
        queue[:, : len(answer)] = torch.where(asked[:, None], answer, queue[:, : len(answer)])
        self.queue.copy_(queue)
        forced = torch.where(answered, self.pool.lengths[turn], s["forced"])
        s["forced"].copy_(torch.where(asked, len(answer), forced))
        phase = torch.where(answered, self.pool.phase[turn], s["phase"])
        s["phase"].copy_(torch.where(asked, ANSWER, phase))
        s["place"].copy_(torch.where(ended, 0, s["place"]))
        s["left"].copy_(torch.where(ended, self._budget(s["phase"]), s["left"]))
        s["heat"].copy_(torch.where(ended, self._heats(), s["heat"]))

    def _random(self, below: int) -> Tensor:
        return torch.randint(below, (self.batch,), device=self.device)

    def _heats(self) -> Tensor:
        chance = torch.rand(self.batch, device=self.device)
        return torch.bucketize(chance, self.constants["shares"])

    def _budget(self, phase: Tensor) -> Tensor:
        request, answer = (
            torch.randint(*limits, (self.batch,), device=self.device)
            for limits in (REQUEST_TOKENS, ANSWER_TOKENS)
        )
        return torch.where(phase == USER, request, answer)


def sample(logits: Tensor, temperature: Tensor) -> Tensor:
    """Gumbel-max sampling, a temperature a row (0 is the argmax)."""
    noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().clamp_min(1e-20).log()
    return (logits.float() + temperature[:, None] * noise).argmax(-1)


def empty_rows(rows: int, length: int, k: int, vocab: int, device: torch.device) -> Rows:
    id_type = torch.int16 if vocab <= 65536 else torch.int32
    size = (rows, length)
    return Rows(
        tokens=torch.zeros(size, dtype=torch.int32, device=device),
        chosen=torch.zeros(size, dtype=torch.bool, device=device),
        heat=torch.zeros(size, dtype=torch.uint8, device=device),
        ids=torch.zeros((*size, k), dtype=id_type, device=device),
        log_probs=torch.zeros((*size, k), dtype=torch.float16, device=device),
    )


def harvest(rows: Rows, seeds: Seeds, rng: np.random.Generator) -> list[np.ndarray]:
    """The first answer or plain text of each row, cut at the end of a sentence if it has one."""
    tokens, chosen = rows.tokens.cpu().numpy(), rows.chosen.cpu().numpy()
    passages = []
    for row, free in zip(tokens, chosen, strict=True):
        places = np.flatnonzero(free)
        stops = np.flatnonzero(np.diff(places) > 1)
        end = places[stops[0] if len(stops) else -1] + 1
        is_chat = any(np.array_equal(row[: len(head)], head) for head in seeds.heads)
        begin = places[0] + 1 if is_chat else seeds.n_bos
        text = row[begin : min(end, begin + rng.integers(24, 180))]
        ends = np.flatnonzero(np.isin(text[16:], seeds.sentence_ends))
        text = text[: 17 + ends[-1]] if len(ends) else text
        if len(text) >= 16:
            passages.append(text)
    return passages


def mixed_pool(
    seeds: Seeds, passages: list[list[np.ndarray]], rng: np.random.Generator, device: torch.device
) -> Pool:
    """Openers, frames around a random passage of the right class, and whole seed prompts."""
    unit = len(seeds.openers) / POOL_SHARES["openers"]
    requests = _some(seeds.prompts, round(unit * POOL_SHARES["prompts"]), rng)
    for frame in rng.integers(len(seeds.before), size=round(unit * POOL_SHARES["frames"])):
        choices = passages[seeds.wrap_class[frame]]
        if choices:
            passage = choices[rng.integers(len(choices))]
            requests.append(np.concatenate((seeds.before[frame], passage, seeds.after[frame])))
    return make_pool(seeds, requests, seeds.openers, device)


def _some(items: list[np.ndarray], count: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [items[i] for i in rng.permutation(len(items))[:count]]


def passage_pool(seeds: Seeds, passage_class: int, device: torch.device) -> Pool:
    """The seed prompts whose answers serve as passages of a class."""
    places = np.flatnonzero(seeds.prompt_class == passage_class)
    return make_pool(seeds, [seeds.prompts[i] for i in places], [], device)


def write_text(
    writer: Writer, capacity: int, deadline: float, seed: int, log: Callable[[str], None]
) -> Rows:
    """Waves until `capacity` rows or the deadline, first those that write the passages."""
    seeds, rng = writer.seeds, np.random.default_rng(seed)
    k, vocab = writer.rows.ids.shape[-1], writer.teacher.shape.vocab
    store = empty_rows(capacity, writer.length, k, vocab, writer.device)
    passages: list[list[np.ndarray]] = [[] for _ in range(1 + max(PASSAGE_WAVES))]
    pool, filled, waves = None, 0, 0
    while filled + writer.batch <= capacity and (
        waves <= len(PASSAGE_WAVES) or time.monotonic() < deadline
    ):
        if waves < len(PASSAGE_WAVES):
            kind = PASSAGE_WAVES[waves]
            writer.set_pool(passage_pool(seeds, kind, writer.device))
            rows = writer.wave(STARTS_SHARE if kind == 0 else 0.0)
            passages[kind] += harvest(rows, seeds, rng)
        else:
            pool = pool or mixed_pool(seeds, passages, rng, writer.device)
            writer.set_pool(pool)
            rows = writer.wave()
        for name in FIELDS:
            getattr(store, name)[filled : filled + writer.batch] = getattr(rows, name)
        filled, waves = filled + writer.batch, waves + 1
        log(f"wave {waves}: {filled * writer.length / 1e6:.1f}M tokens")
    return Rows(*(getattr(store, name)[:filled] for name in FIELDS))
