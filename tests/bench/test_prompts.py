"""The project's prompts, and files of people's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specllama.bench.prompts import KINDS, Prompt, builtin, of_kinds, parse, read
from specllama.errors import UsageError


def test_there_are_forty_prompts_of_ten_kinds() -> None:
    prompts = builtin()
    kinds = Counter(prompt.kind for prompt in prompts)
    assert len(prompts) >= 40
    assert tuple(kinds) == KINDS and len(KINDS) == 10
    assert all(4 <= count <= 6 for count in kinds.values())


def test_builtin_prompts_are_distinct() -> None:
    prompts = builtin()
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_builtin_prompts_are_short_enough_for_small_models() -> None:
    assert max(len(prompt.text) for prompt in builtin()) < 1500


@pytest.mark.parametrize("kind", ["code-edit", "summary", "question", "extraction", "rewrite"])
def test_kinds_about_a_text_bring_it(kind: str) -> None:
    for prompt in of_kinds(builtin(), [kind]):
        assert prompt.source and prompt.text.endswith(prompt.source)


def test_a_file_needs_nothing_but_prompts(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"prompt": "Hi"}\r\n\r\n{"id": "b", "kind": "k", "prompt": "Fix:", '
        b'"source": "teh"}\n'
    )
    assert read(file) == [Prompt("1", "own", "Hi"), Prompt("b", "k", "Fix:", "teh")]
    assert read(file)[1].text == "Fix:\n\nteh"


def test_only_ends_of_lines_end_lines() -> None:
    data = '{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}'.encode()
    assert [prompt.prompt for prompt in parse(data, "own.jsonl")] == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "has no prompts"),
        (b"\n \n", "has no prompts"),
        (b'{"prompt": "a"}\nnot json\n', "line 2 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'"a text"', "line 1 is not a JSON object"),
        (b"[1]", "line 1 is not a JSON object"),
        (b"{}", 'line 1 has no "prompt"'),
        (b'{"prompt": "  "}', 'line 1 has no "prompt"'),
        (b'{"prompt": 5}', '"prompt" is not a text'),
        (b'{"prompt": null}', '"prompt" is not a text'),
        (b'{"prompt": "a", "id": 7}', '"id" is not a text'),
        (b'{"prompt": "a", "source": []}', '"source" is not a text'),
        (b'{"prompt": "\\ud800"}', '"prompt" is not valid Unicode'),
        (b'{"prompt": "\xff"}', "is not UTF-8"),
        (b'{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}', "two prompts with the id 'x'"),
        (b'{"id": "2", "prompt": "a"}\n{"prompt": "b"}', "two prompts with the id '2'"),
    ],
)
def test_a_file_that_is_none_says_where(data: bytes, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as error:
        parse(data, "own.jsonl")
    assert "own.jsonl" in str(error.value) and error.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot read .*gone\.jsonl"):
        read(tmp_path / "gone.jsonl")
    with pytest.raises(UsageError, match="Cannot read"):
        read(tmp_path)


def test_kinds_choose() -> None:
    prompts = [Prompt("1", "a", "x"), Prompt("2", "b", "y"), Prompt("3", "a", "z")]
    assert [prompt.id for prompt in of_kinds(prompts, ["a"])] == ["1", "3"]
    assert of_kinds(prompts, []) == prompts
    with pytest.raises(UsageError, match="'c'") as error:
        of_kinds(prompts, ["a", "c"])
    assert "a, b" in error.value.hint
