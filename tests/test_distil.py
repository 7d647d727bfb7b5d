"""scripts/distil: seeds that keep clear of the held-out prompts, their tokens for targets of other
kinds, the trained 4-bit grid, and what the steps refuse."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from distil.export import write_gguf
from distil.shape import open_gguf, read_shape
from gguf.quants import dequantize

from specllama.errors import ModelError
from tests.llama.tiny import write_gemma3, write_llama

SCRIPTS = Path(__file__).parent.parent / "scripts"
ZEPHYR = """{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] +
eos_token + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}{% endfor %}"""
BOS, EOS = 1, 2
"""Of the SentencePiece vocabulary."""


@pytest.fixture(scope="module", params=["prompts", "quantise"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(f"distil.{request.param}")
    finally:
        sys.path.remove(str(SCRIPTS))


def runs(text: str, length: int = 5) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_seeds_share_no_five_words_with_held_out_prompts(module: ModuleType) -> None:
    lines = (SCRIPTS / "heldout_prompts.jsonl").read_text().splitlines()
    held_out = set().union(*(runs(json.loads(line)["prompt"]) for line in lines))
    frames = [f"{wrap.before} {wrap.after}" for wrap in module.make_wraps(8000, 1)]
    requests = [prompt for _, prompt in module.make_prompts(8000, 0)]
    seeds = frames + requests + module.make_openers(8000, 2) + module.make_starts(8000, 3)
    assert len(held_out) > 200
    assert [seed for seed in seeds if runs(seed) & held_out] == []


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_openers_are_filled_varied_and_some_leave_everything_to_the_target(
    module: ModuleType,
) -> None:
    openers = module.make_openers(8000, 0)
    assert not any(re.search(r"\{\w+\}", opener) for opener in openers)
    assert len(set(openers)) > 2500
    assert 0.08 < openers.count("") / len(openers) < 0.17


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_topics_of_ones_own_are_asked_about(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = {slot: list(entries) for slot, entries in module.CHOICES.items()}
    monkeypatch.setattr(module, "CHOICES", choices)
    before = [prompt for _, prompt in module.make_prompts(500, 0)]
    module.add_topics(["quokka"] * 500)
    after = [prompt for _, prompt in module.make_prompts(500, 0)] + module.make_openers(500, 0)
    assert not any("quokka" in prompt for prompt in before)
    assert sum("quokka" in prompt for prompt in after) > 100


@pytest.mark.parametrize("module", ["quantise"], indirect=True)
def test_weights_on_a_4_bit_grid_survive_packing(module: ModuleType) -> None:
    rng = np.random.default_rng(0)
    unit, unit_minimum = 1 / 64, 1 / 32
    scale, minimum = rng.integers(8, 63, (2, 6, 8))
    scale[:, 0] = minimum[:, 3] = 63
    levels = rng.integers(0, 16, (6, 8, 32))
    levels[..., :2] = 0, 15
    blocks = (levels * scale[..., None]) * unit - minimum[..., None] * unit_minimum
    table = blocks.reshape(3, 512).astype(np.float32)
    packed = module.pack_q4_k(table)
    assert packed.shape == (3, 2 * 144)
    np.testing.assert_array_equal(dequantize(packed, gguf.GGMLQuantizationType.Q4_K), table)


@pytest.mark.parametrize("module", ["quantise"], indirect=True)
def test_other_weights_move_by_about_half_a_step_at_most(module: ModuleType) -> None:
    table = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    restored = dequantize(module.pack_q4_k(table), gguf.GGMLQuantizationType.Q4_K)
    blocks, moved = table.reshape(-1, 32), np.abs(restored - table).reshape(-1, 32)
    step = (blocks.max(-1) - blocks.min(-1)) / 15
    assert (moved.max(-1) < 0.8 * step).all()
    assert moved.mean() < 0.3 * step.mean()


def with_fields(source: Path, out: Path, /, without: str = "", **changes: str | None) -> Path:
    """The same model with other texts in its metadata (dots are written as two underscores).

    Args:
        without: a tensor that is left out.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    texts = {name.replace("__", "."): text for name, text in changes.items()}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in texts:
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for key, text in texts.items():
        if text is not None:
            writer.add_string(key, text)
    for tensor in reader.tensors:
        if tensor.name != without:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.fixture(scope="module", params=["zephyr", "mistral"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, llama_cpp: None
) -> Any:
    """Of a SentencePiece target whose template writes special tokens by their variables."""
    from distil.tokens import Tokenizer

    folder = tmp_path_factory.mktemp("target")
    template = {"zephyr": ZEPHYR, "mistral": MISTRAL}[request.param]
    small = write_llama(folder / "small.gguf")
    file = with_fields(small, folder / "target.gguf", tokenizer__chat_template=template)
    return Tokenizer(file)


@pytest.mark.parametrize("request_text", ["hello world", "world", "123\n", "  hello"])
def test_parts_of_a_chat_are_the_chat(tokenizer: Any, request_text: str) -> None:
    """No space between them, begin and end tokens where llama.cpp has them."""
    frame = tokenizer.frame(None)
    request = tokenizer.inside(frame.lead + request_text)
    whole = tokenizer.chat(request_text)
    assert [*frame.head, *request, *frame.to_answer] == whole
    assert whole[0] == BOS
    assert BOS not in whole[1:]


def test_a_second_turn_begins_with_the_end_of_the_answer(tokenizer: Any) -> None:
    frame = tokenizer.frame(None)
    assert frame.to_user[0] == EOS
    assert EOS in tokenizer.end_tokens()
    assert tokenizer.plain("hello")[0] == BOS


def test_a_system_message_is_somewhere_in_the_head(tokenizer: Any) -> None:
    """Where the template refuses system messages, it opens the request."""
    plain, system = tokenizer.frame(None), tokenizer.frame("hello world")
    assert len(system.head) > len(plain.head)
    assert (system.to_answer, system.to_user) == (plain.to_answer, plain.to_user)


def test_seeds_of_a_sentencepiece_target(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distil import tokens

    monkeypatch.setattr(tokens, "Tokenizer", lambda _: tokenizer)
    tokens.write_tokens(Path(), tmp_path / "seeds.npz", 20, 0, [])
    seeds = np.load(tmp_path / "seeds.npz")
    starts = np.split(seeds["starts_ids"], seeds["starts_ends"][:-1])
    assert seeds["bos"].tolist() == [BOS]
    assert all(start[0] == BOS for start in starts)
    assert BOS not in seeds["prompts_ids"]


def test_a_target_without_a_template_is_refused(tmp_path: Path, llama_cpp: None) -> None:
    from distil.tokens import Tokenizer

    with pytest.raises(ModelError, match="has no chat template"):
        Tokenizer(write_llama(tmp_path / "target.gguf"))


def step(*arguments: object, torch: bool = False) -> subprocess.CompletedProcess[str]:
    """A step in a process of its own, by default where torch cannot be imported."""
    hidden = "" if torch else "import sys; sys.modules['torch'] = None; "
    code = f"{hidden}import sys; sys.path.insert(0, {str(SCRIPTS)!r}); "
    code += "import distil_draft; distil_draft.main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)


def refusal(*arguments: object) -> str:
    """The last line of what a step says when it leaves."""
    done = step(*arguments)
    assert done.returncode not in (0, -11)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_help_and_seeds_need_no_torch(tmp_path: Path, llama_cpp: None) -> None:
    assert "quantise" in step("--help").stdout
    small = write_llama(tmp_path / "small.gguf")
    target = with_fields(small, tmp_path / "target.gguf", tokenizer__chat_template=ZEPHYR)
    done = step("seeds", target, tmp_path / "work", "--count", 20)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "work" / "seeds.npz").is_file()


def test_seeds_refuse_what_train_would(tmp_path: Path) -> None:
    other = write_gemma3(tmp_path / "gemma.gguf", 32)
    said = refusal("seeds", other, tmp_path)
    assert said.endswith("is 'gemma3'; only 'llama' can be distilled. Choose another target.")
    assert not (tmp_path / "seeds.npz").exists()


def test_tensors_that_are_not_computed_with_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "biased.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("blk.0.attn_q.bias", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        SystemExit, match=r"has blk\.0\.attn_q\.bias, which plain llama models lack"
    ):
        read_shape(file, open_gguf(file))


def test_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    target, work, text = write_llama(tmp_path / "t.gguf"), tmp_path / "work", tmp_path / "x.gguf"
    text.write_text("no model")
    none = tmp_path / "none.gguf"
    for arguments, said in (
        (("seeds", none, work), "none.gguf is not there. Name the GGUF that the draft is for."),
        (("seeds", text, work), "x.gguf is not a whole GGUF file. Give a model's file."),
        (("seeds", target, work, "--topics", none), "Name a text file with --topics"),
        (("seeds", target, work), "has no chat template. Choose a target with one."),
        (("seeds", target, work, "--count", 0), "0 is not a whole number of at least 1"),
        (("train", none, work), "none.gguf is not there. Name the GGUF that the draft is for."),
        (("train", target, work), "seeds.npz is not there. Make it first: distil_draft.py seeds"),
        (("train", target, work, "--begin-as", none), "not there. Name an earlier draft"),
        (("export", target, work), "student.pt is not there. Train first: distil_draft.py train"),
        (("quantise", none, tmp_path / "o.gguf"), "none.gguf is not there. Name what `train`"),
        (("quantise", text, tmp_path / "o.gguf"), "x.gguf is not a whole GGUF file"),
        (("quantise", target, none / "o.gguf"), "none.gguf/o.gguf: No such file or directory"),
        (("quantise", target, tmp_path / "o.gguf", "--head", "Q9"), "invalid choice: 'Q9'"),
    ):
        assert said in refusal(*arguments), arguments
    assert not (tmp_path / "o.gguf").exists()


def test_a_step_without_its_packages_names_them(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf")
    (tmp_path / "seeds.npz").touch()
    assert refusal("train", target, tmp_path).startswith("torch is not installed here.")


def test_a_start_that_does_not_fit_is_told_before_anything_takes_time(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf")
    start = with_fields(target, tmp_path / "start.gguf", without="output.weight")
    (tmp_path / "seeds.npz").touch()
    asked = ("train", target, tmp_path, "--begin-as", start, "--type", "Q4_1")
    for wrong in (("--width", 64), ("--ffn", 32), ("--kv-heads", 2)):
        assert refusal(*asked, *wrong).endswith("heads that it has, and no smaller --ffn."), wrong
    for right in ((), ("--ffn", 96), ("--layers", 1), ("--layers", 9)):
        assert refusal(*asked, *right).startswith("torch is not installed here."), right
    two_heads = write_llama(tmp_path / "other.gguf")
    assert "has a head besides its embedding" in refusal(*asked, "--begin-as", two_heads)
    target = ("train", start, tmp_path, "--begin-as", start, "--type", "Q4_1")
    assert refusal(*target).endswith("Say with --layers how many to begin as.")
    assert refusal(*target, "--layers", 1).startswith("torch is not installed here.")


def test_rows_that_do_not_fit_the_type_are_told_before_anything_takes_time(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf")
    (tmp_path / "seeds.npz").touch()

    def said(*sizes: object) -> str:
        return refusal("train", target, tmp_path, *sizes)

    few = "no multiple of 256, as Q4_K needs. Choose one that is, or --type Q4_1 or Q8_0."
    assert said("--width", 576) == f"--width 576 is {few}"
    assert said("--ffn", 96) == f"--ffn 96 is {few}"
    odd = said("--width", 40, "--type", "Q4_1")
    assert odd == "--width 40 is no multiple of 32, as Q4_1 needs. Choose one that is."
    for name in ("Q4_1", "Q8_0"):
        fits = said("--width", 576, "--ffn", 96, "--type", name)
        assert fits.startswith("torch is not installed here."), name


def test_heads_that_do_not_fit_are_told_before_anything_takes_time(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf")
    (tmp_path / "seeds.npz").touch()

    def said(*sizes: object) -> str:
        return refusal("train", target, tmp_path, *sizes)

    for heads in (3, 256):
        no = f"--width 256 cannot be {heads} heads of an even width. Choose --heads that fit."
        assert said("--heads", heads) == no
    few = "--heads 4 is no multiple of --kv-heads 3. Choose one that is."
    assert said("--kv-heads", 3) == few
    assert said("--heads", 8, "--kv-heads", 8).startswith("torch is not installed here.")


def test_inputs_are_not_written_over(tmp_path: Path) -> None:
    """The draft of WORK is what `train` writes, also where it was given as target or start."""
    draft, link = write_llama(tmp_path / "draft-f16.gguf"), tmp_path / "link.gguf"
    link.symlink_to(draft)
    target = write_llama(tmp_path / "target.gguf")
    for name in ("seeds.npz", "student.pt"):
        (tmp_path / name).touch()
    before = draft.read_bytes()
    for arguments in (
        ("quantise", draft, draft),
        ("quantise", draft, link),
        ("train", draft, tmp_path),
        ("train", target, tmp_path, "--begin-as", link),
        ("export", link, tmp_path),
    ):
        assert "is read and would be written over" in refusal(*arguments), arguments
    assert draft.read_bytes() == before


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
def test_a_draft_is_quantised_and_what_was_there_replaced(
    tmp_path: Path, llama_cpp: None, name: str
) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("earlier")
    done = step("quantise", write_llama(tmp_path / "d.gguf"), out, "--head", name, "--body", name)
    assert done.returncode == 0, done.stderr
    matrices = [t for t in gguf.GGUFReader(out).tensors if len(t.shape) == 2]
    assert matrices
    assert {t.tensor_type.name for t in matrices} == {name}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.gguf", "out.gguf"]


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        ("Lama 1B", None, "Lama 1B draft"),
        (None, None, "target draft"),
        ("Lama 1B", "Mine", "Mine"),
    ],
)
def test_a_draft_is_named_after_its_target(
    tmp_path: Path, given: str | None, name: str | None, said: str
) -> None:
    small = write_llama(tmp_path / "small.gguf")
    target = with_fields(small, tmp_path / "target.gguf", general__name=given)
    shape = read_shape(target, open_gguf(target))
    out = tmp_path / "draft-f16.gguf"
    write_gguf({"token_embd.weight": np.zeros((4, 32))}, shape, target, out, name)
    assert gguf.GGUFReader(out).fields["general.name"].contents() == said
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gguf"] * 3
