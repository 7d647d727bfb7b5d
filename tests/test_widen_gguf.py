"""scripts/widen_gguf.py: a wider model of the same law, with nothing cheap about its weights."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.llama.tiny import N_VOCAB, SPECIAL

SCRIPT = Path(__file__).parent.parent / "scripts" / "widen_gguf.py"
WIDTH, HEADS, KV_HEADS, FFN, LAYERS = 128, 4, 2, 96, 2
IDS = [40, 77, 12, 200, 3, 3, 91, 150, 40, 77]
WORDS = [504, 2365, 282, 4649, 314, 3575, 28, 284, 260, 2240]
"""Tokens of SmolLM2."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("widen_gguf", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["widen_gguf"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write_llama(path: Path, kind: str = "Q4_1", extra: Sequence[str] = ()) -> Path:
    """A llama of a few kilobytes: random matrices of a quantised type, tied table of Q8_0."""
    import gguf

    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-2)  # large, so that a wrong one is seen
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    letters = [f"t{n}" for n in range(N_VOCAB - len(SPECIAL))]
    writer.add_token_list([*SPECIAL, *letters])
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(letters))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)

    def add(name: str, rows: int, columns: int, kind: str = kind) -> None:
        weights = random.normal(0.0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)
        type_ = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(weights, type_), raw_dtype=type_)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, random.uniform(0.5, 1.5, WIDTH).astype(np.float32))

    add("token_embd.weight", N_VOCAB, WIDTH, "Q8_0")
    add_norm("output_norm.weight")
    kv = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm.weight")
        add_norm(f"{block}.ffn_norm.weight")
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", kv, WIDTH),
            ("attn_v", kv, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FFN, WIDTH),
            ("ffn_up", FFN, WIDTH),
            ("ffn_down", WIDTH, FFN),
        ):
            add(f"{block}.{name}.weight", rows, columns)
    for name in extra:
        add_norm(name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "source.gguf")


def logits(path: Path, ids: Sequence[int] = IDS) -> np.ndarray:
    """Rows after each id, in one batch of one thread."""
    from specllama.llama.context import Context
    from specllama.llama.model import Model

    with Model(path, gpu_layers=0, repack=False) as model:
        context = Context(model, n_ctx=256, n_batch=256, threads=1, flash_attn="on")
        every = [True] * len(ids)
        rows = np.stack(context.decode(ids, range(len(ids)), [(0,)] * len(ids), every))
        context.close()
    return rows


def widened(script: ModuleType, source: Path, **sizes: int) -> Path:
    shape = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "kv_heads": KV_HEADS, "ffn": FFN}
    out = source.with_name("wide.gguf")
    script.widen(script.Source(source), script.Shape(**shape | sizes), out, 2)
    return out


@pytest.mark.parametrize(
    "sizes",
    [
        {"width": 4 * WIDTH},
        {"heads": 2 * HEADS},
        {"heads": 3 * HEADS, "kv_heads": 3},
        {"ffn": 160},
        {"layers": 5},
        {"width": 16 * WIDTH, "heads": 12, "kv_heads": 4, "ffn": 320, "layers": 3},
    ],
)
def test_the_same_bits(
    script: ModuleType, source: Path, llama_cpp: None, sizes: dict[str, int]
) -> None:
    """At 4 and 16 times the width even the norms' rounding is the same."""
    assert np.array_equal(logits(widened(script, source, **sizes)), logits(source))


def test_the_same_law_at_other_widths(script: ModuleType, source: Path, llama_cpp: None) -> None:
    expected = logits(source)
    assert np.abs(expected).max() > 1.0
    found = logits(widened(script, source, width=320, heads=8, ffn=224, layers=3))
    assert np.allclose(found, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_other_types(script: ModuleType, tmp_path: Path, llama_cpp: None, kind: str) -> None:
    source = write_llama(tmp_path / "source.gguf", kind)
    wide = widened(script, source, width=4 * WIDTH, heads=8, ffn=128)
    assert np.array_equal(logits(wide), logits(source))


def test_the_cost_is_real(script: ModuleType, source: Path) -> None:
    """Nearly all weights are there and not zero, and the source's are among them as they were."""
    import gguf

    sizes = {"width": 512, "heads": 16, "kv_heads": 4, "ffn": 1024, "layers": 3}
    tensors = {t.name: t for t in gguf.GGUFReader(widened(script, source, **sizes)).tensors}
    given = {t.name: t for t in gguf.GGUFReader(source).tensors}
    matrices = [t for t in tensors.values() if len(t.shape) > 1 and "token_embd" not in t.name]
    assert sum(t.n_elements for t in matrices if t.name.startswith("blk.")) == 3 * (
        2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024
    )
    values = np.concatenate([gguf.quants.dequantize(t.data, t.tensor_type).ravel()
                             for t in matrices])  # fmt: skip
    assert np.isfinite(values).all()
    assert (values == 0).mean() < 0.2
    up = "blk.1.ffn_up.weight"
    row = given[up].data.shape[1]
    assert np.array_equal(tensors[up].data[:FFN, :row], given[up].data)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"width": 64}, "width must be at least"),
        ({"width": 144}, "not a multiple of the block size"),
        ({"heads": 6, "kv_heads": 4}, "kv heads need"),
        ({"heads": 8, "kv_heads": 8}, "kv heads need"),
    ],
)
def test_shapes_that_cannot_be(
    script: ModuleType, source: Path, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        widened(script, source, **sizes)


def test_sources_that_cannot_be_widened(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="use Q4_0, Q4_1 or Q8_0"):
        script.Source(write_llama(tmp_path / "half.gguf", "F16"))
    with pytest.raises(SystemExit, match="what it does is not known"):
        script.Source(write_llama(tmp_path / "bias.gguf", extra=["blk.0.attn_q.bias"]))


@pytest.mark.parametrize("link", ["itself", "symlink", "hardlink"])
def test_the_source_is_not_written_over(script: ModuleType, source: Path, link: str) -> None:
    before, out = source.read_bytes(), source.with_name("out.gguf")
    if link == "itself":
        out = source
    elif link == "symlink":
        out.symlink_to(source)
    else:
        out.hardlink_to(source)
    shape = script.Shape(LAYERS, 4 * WIDTH, HEADS, KV_HEADS, FFN)
    with pytest.raises(
        SystemExit, match=r"is read and would be written over\. Name or put it elsewhere"
    ):
        script.widen(script.Source(source), shape, out, 1)
    assert source.read_bytes() == before


@pytest.mark.parametrize("place", ["none/out.gguf", "folder", "full.gguf"])
def test_an_out_that_cannot_be_written_is_told_and_left_as_it_was(
    script: ModuleType, source: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.parent / "folder").mkdir()
    out = source.parent / place
    if place == "full.gguf":
        out.write_text("earlier")

        def no_space(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(script.os, "pwrite", no_space)
    before = sorted(source.parent.rglob("*"))
    shape = script.Shape(LAYERS, 4 * WIDTH, HEADS, KV_HEADS, FFN)
    with pytest.raises(SystemExit, match=r"No such file|is a folder|No space left") as told:
        script.widen(script.Source(source), shape, out, 1)
    assert str(out) in str(told.value)
    assert sorted(source.parent.rglob("*")) == before
    assert place != "full.gguf" or out.read_text() == "earlier"


def test_a_source_that_is_no_model_is_a_sentence(script: ModuleType, tmp_path: Path) -> None:
    text, empty = tmp_path / "text.gguf", tmp_path / "empty.gguf"
    text.write_text("no model")
    empty.touch()
    for file in (text, empty):
        with pytest.raises(SystemExit, match=r"is not a GGUF file\."):
            script.Source(file)
    for file in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(SystemExit, match=f"Cannot read {file}: .* Give a model's file"):
            script.Source(file)


@pytest.mark.model
@pytest.mark.slow
def test_the_real_target(script: ModuleType, target_file: Path, tmp_path: Path) -> None:
    """SmolLM2 at four times its width: the same bits and the same greedy text."""
    wide = tmp_path / "wide.gguf"
    shape = script.Shape(layers=31, width=2304, heads=12, kv_heads=3, ffn=1600)
    script.widen(script.Source(target_file), shape, wide, 1)
    assert np.array_equal(logits(wide, WORDS), logits(target_file, WORDS))
    assert greedy(wide) == greedy(target_file)


@pytest.mark.model
@pytest.mark.slow
def test_the_real_target_where_norms_round(
    script: ModuleType, target_file: Path, tmp_path: Path
) -> None:
    """Rounding in a norm flips quantised activations: as much as another batch size would."""
    wide = tmp_path / "wide.gguf"
    shape = script.Shape(layers=30, width=640, heads=12, kv_heads=3, ffn=1536)
    script.widen(script.Source(target_file), shape, wide, 1)
    expected, found = softmax(logits(target_file, WORDS)), softmax(logits(wide, WORDS))
    assert (expected.argmax(-1) == found.argmax(-1)).all()
    assert np.abs(expected - found).sum(-1).mean() / 2 < 0.05


def softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows.astype(np.float64) - rows.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def greedy(path: Path) -> list[int]:
    """What a model goes on with after a prompt."""
    from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder

    options = ModelOptions(n_ctx=256, gpu_layers=0, threads=1)
    greedy = SamplingParams(temperature=0.0)
    params = GenerationParams(max_tokens=16, sampling=greedy, drafter="none")
    with SpeculativeDecoder(path, options=options) as decoder:
        return decoder.generate("The lighthouse was built when", params).tokens
