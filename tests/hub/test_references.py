"""Repository names and the quantisations in a list of files."""

from __future__ import annotations

import pytest

from specllama.errors import HubError, UsageError
from specllama.hub.references import Reference, choose, labels, parse, variants

FILES = {
    "m-Q4_K_M.gguf": 40,
    "m-q6_k.gguf": 60,
    "m-Q8_0/m-Q8_0-00002-of-00002.gguf": 30,
    "m-Q8_0/m-Q8_0-00001-of-00002.gguf": 50,
    "mmproj-model-f16.gguf": 9,
    "README.md": 1,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user/repo", Reference("user/repo")),
        ("user/repo:q4_k_m", Reference("user/repo", "q4_k_m")),
        ("user/repo:dir/file.gguf", Reference("user/repo", "dir/file.gguf")),
        ("hf://user/repo:Q8_0", Reference("user/repo", "Q8_0")),
        ("https://huggingface.co/user/repo-GGUF", Reference("user/repo-GGUF")),
        (
            "https://huggingface.co/user/repo/blob/main/file.gguf",
            Reference("user/repo", "file.gguf"),
        ),
        (
            "https://huggingface.co/user/repo/resolve/main/my%20file.gguf?download=true",
            Reference("user/repo", "my file.gguf"),
        ),
        ("user/repo:my file+x.GGUF", Reference("user/repo", "my file+x.GGUF")),
        ("user/repo:my file", None),
        ("repo", None),
        ("a/b/c", None),
        ("../a", None),
        ("", None),
    ],
)
def test_parse(text: str, expected: Reference | None) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Llama-3.3-70B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q5_0.gguf", "Q5_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-f16.gguf", "F16"),
        ("BF16/model.gguf", "BF16"),
        ("model.gguf", ""),
    ],
)
def test_quantisation_of_a_file_name(name: str, quant: str) -> None:
    (variant,) = variants({name: 1})
    assert variant.quant == quant


def test_parts_belong_together_and_projectors_are_left_out() -> None:
    assert [(v.quant, v.size, len(v.files)) for v in variants(FILES)] == [
        ("Q4_K_M", 40, 1),
        ("Q6_K", 60, 1),
        ("Q8_0", 80, 2),
    ]


def test_parts_come_in_order() -> None:
    chosen = choose(variants(FILES), Reference("u/r", "q8_0"))
    assert [file[-19:] for file in chosen.files] == [
        "-00001-of-00002.gguf"[1:],
        "00002-of-00002.gguf",
    ]


def test_the_default_is_q4_k_m() -> None:
    assert choose(variants(FILES), Reference("u/r")).files == ("m-Q4_K_M.gguf",)


def test_a_file_name_selects_too() -> None:
    assert choose(variants(FILES), Reference("u/r", "m-q6_k.gguf")).quant == "Q6_K"


def test_the_only_model_needs_no_choice() -> None:
    assert choose(variants({"model-f16.gguf": 1}), Reference("u/r")).quant == "F16"


def test_unknown_quantisation_lists_what_there_is() -> None:
    with pytest.raises(UsageError) as caught:
        choose(variants(FILES), Reference("user/repo", "Q5_K_S"))
    assert caught.value.message == "No Q5_K_S in user/repo. It has: Q4_K_M, Q6_K, Q8_0."
    assert caught.value.exit_code == 2


def test_no_default_lists_what_there_is() -> None:
    files = {"m-Q6_K.gguf": 1, "m-Q8_0.gguf": 1}
    with pytest.raises(UsageError, match=r"u/r has no Q4_K_M\. It has: Q6_K, Q8_0\."):
        choose(variants(files), Reference("u/r"))


def test_two_models_of_one_quantisation_need_a_file_name() -> None:
    files = {"a-Q4_K_M.gguf": 1, "b-Q4_K_M.gguf": 1}
    with pytest.raises(UsageError) as caught:
        choose(variants(files), Reference("u/r"))
    assert str(caught.value) == (
        "Several files of u/r fit: a-Q4_K_M.gguf, b-Q4_K_M.gguf. Name one: u/r:a-Q4_K_M.gguf"
    )
    assert choose(variants(files), Reference("u/r", "b-Q4_K_M.gguf")).files == ("b-Q4_K_M.gguf",)


def test_a_label_selects_one_variant_alone() -> None:
    files = {
        "a-Q4_K_M.gguf": 1,
        "b-Q4_K_M.gguf": 2,
        "m-Q8_0.gguf": 3,
        "x/m-Q6_K.gguf": 4,
        "y/m-Q6_K.gguf": 5,
        "m-Q6_K.gguf": 6,
        "plain.gguf": 7,
    }
    found = variants(files)
    names = labels(found)
    assert names == [
        "a-Q4_K_M.gguf",
        "b-Q4_K_M.gguf",
        "Q8_0",
        "x/m-Q6_K.gguf",
        "y/m-Q6_K.gguf",
        "m-Q6_K.gguf",
        "plain.gguf",
    ]
    assert [choose(found, Reference("u/r", name)) for name in names] == found
    assert labels(found, taken={"Q8_0"})[2] == "m-Q8_0.gguf"


def test_a_repository_without_models() -> None:
    with pytest.raises(HubError, match="u/r holds no GGUF files"):
        choose(variants({"model.safetensors": 1}), Reference("u/r"))
