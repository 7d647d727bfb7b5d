"""What `import specllama` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specllama

HEAVY = ("numpy", "llama_cpp", "huggingface_hub", "gguf", "jinja2", "pydantic", "rich", "typer")


def test_all_is_sorted_and_complete() -> None:
    assert list(specllama.__all__) == sorted(specllama.__all__)
    assert set(specllama.__all__) == {*specllama._HOMES, "__version__"}


@pytest.mark.parametrize("name", sorted(specllama._HOMES))
def test_each_name_imports(name: str) -> None:
    found = getattr(specllama, name)
    assert found.__name__ == name
    assert found.__module__ == f"specllama.{specllama._HOMES[name]}"
    assert found.__doc__


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = specllama.Nonsense


def test_version_is_the_packages() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert version("specllama") == specllama.__version__
    except PackageNotFoundError:
        pytest.skip("specllama is not installed")


@pytest.mark.parametrize(
    "statement",
    ["import specllama", "import specllama.errors", "import specllama.results"],
)
def test_light_imports(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_room_but_llama_imports_llama_cpp() -> None:
    """The engine and everything below it work without llama.cpp."""
    code = (
        "import sys, specllama.engine.engine, specllama.drafting.suffix, specllama.drafting.model, "
        "specllama.verification, specllama.text.stream; print('llama_cpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
