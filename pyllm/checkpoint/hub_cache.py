"""Lists and deletes models in huggingface_hub's cache. Downloads nothing, reads no model."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyllm.checkpoint.gguf_header import part_names
from pyllm.checkpoint.hub import Hub, repository_folder
from pyllm.checkpoint.hub_files import choose_gguf, gguf_models, quantization_of
from pyllm.checkpoint.model_name import HubName
from pyllm.errors import ConfigError

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRevisionInfo, HFCacheInfo

_SHORT_COMMIT = 7


class CachedModel(msgspec.Struct, frozen=True):
    """A model on this disk. `name` is its name for `pyllm serve`, `path` its GGUF file or its folder."""

    name: str
    format: str
    num_bytes: int
    revision: str
    path: str


def cached_models(cache_dir: str | None = None) -> list[CachedModel]:
    """Every model in the cache: each GGUF file is one, and the other files of a revision together are one."""
    found = _scan(cache_dir)
    if found is None:
        return []
    repositories = sorted(found.repos, key=lambda repository: repository.repo_id)
    whole = [
        model
        for repository in repositories
        if repository.repo_type == "model"
        for revision in sorted(repository.revisions, key=lambda one: ("main" not in one.refs, one.commit_hash))
        for model in _models(repository.repo_id, revision)
    ]
    begun = {
        file.file_path.parent.parent: file.size_on_disk
        for file in found.incomplete_files
        if file.file_path.parent.parent.name.startswith("models--")
    }
    known = {repository.repo_path for repository in repositories if repository.revisions}
    return whole + [
        CachedModel(folder.name.removeprefix("models--").replace("--", "/", 1), "incomplete", size, "", str(folder))
        for folder, size in begun.items()
        if folder not in known
    ]


def remove(name: HubName, cache_dir: str | None = None) -> int:
    """Delete a model from the cache; returns the number of bytes freed.

    A name without a revision means all revisions. The name of a GGUF file leaves the other files of its repository.

    Raises:
        ConfigError: the cache does not have it.
    """
    found = _scan(cache_dir)
    all_revisions = _revisions(found, name.repository)
    revisions = [revision for revision in all_revisions if _is_meant(revision, name)]
    folder = repository_folder(name, Hub(cache_dir=cache_dir))
    if name.has_revision and any(name.revision in revision.refs and len(revision.refs) > 1 for revision in revisions):
        (folder / "refs" / name.revision).unlink()  # Another revision name has the same files.
        return 0
    if not all_revisions and folder.is_dir():  # A download that was interrupted in its first file.
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder)
        return size
    if found is None or not revisions:
        raise ConfigError(f"{name.text} is not in the cache: `pyllm models` lists what is there")
    files = [file for revision in revisions for file in _files(revision, name)]
    if len(files) == sum(len(revision.files) for revision in revisions):
        strategy = found.delete_revisions(*(revision.commit_hash for revision in revisions))
    else:
        strategy = found.delete_files(*files)
    strategy.execute()
    return strategy.expected_freed_size


def _models(repository: str, revision: "CachedRevisionInfo") -> Iterator[CachedModel]:
    commit, snapshot = revision.commit_hash, revision.snapshot_path
    suffix = "" if "main" in revision.refs else f"@{min(revision.refs, default=commit)}"
    files = {_name_in(revision, file.file_path): file for file in revision.files}
    models = gguf_models(files)
    quantizations = [quantization_of(file) for file in models]
    for file, quantization in zip(models, quantizations, strict=True):
        is_named = quantization and quantizations.count(quantization) == 1
        name = f"{repository}:{quantization}" if is_named else f"{repository}/{file}"
        size = sum(files[part].size_on_disk for part in part_names(file) if part in files)
        yield CachedModel(name + suffix, f"GGUF {quantization}".strip(), size, commit, str(snapshot / file))
    has_safetensors = any(file.endswith(".safetensors") for file in files)
    if files and (has_safetensors or not models):
        parts = {part for model in models for part in part_names(model)}
        size = sum(file.size_on_disk for name, file in files.items() if name not in parts)
        kind = "safetensors" if has_safetensors else "no weights"
        # An incomplete download has only the name of its repository.
        name = repository + suffix if has_safetensors or revision.refs else repository
        yield CachedModel(name, kind, size, commit, str(snapshot))


def _files(revision: "CachedRevisionInfo", name: HubName) -> list["CachedFileInfo"]:
    if not (name.quantization or name.file):
        return list(revision.files)
    files = {_name_in(revision, file.file_path): file for file in revision.files}
    return [files[part] for part in part_names(choose_gguf(name, files))]


def _revisions(found: "HFCacheInfo | None", repository: str) -> list["CachedRevisionInfo"]:
    repositories = found.repos if found else ()
    models = [model for model in repositories if model.repo_type == "model" and model.repo_id == repository]
    return [revision for model in models for revision in model.revisions]


def _is_meant(revision: "CachedRevisionInfo", name: HubName) -> bool:
    is_commit = len(name.revision) >= _SHORT_COMMIT and revision.commit_hash.startswith(name.revision)
    return not name.has_revision or is_commit or name.revision in revision.refs


def _name_in(revision: "CachedRevisionInfo", path: Path) -> str:
    return path.relative_to(revision.snapshot_path).as_posix()


def _scan(cache_dir: str | None) -> "HFCacheInfo | None":
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(cache_dir)
    except CacheNotFound:
        return None
