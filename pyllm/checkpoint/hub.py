"""Models of the Hugging Face hub: downloaded once into huggingface_hub's own cache, then found there.

huggingface_hub reads its environment variables (HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT), resumes
broken downloads and draws progress bars. It is imported only for models of the hub. Reads no model.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyllm.checkpoint.hub_files import collect
from pyllm.checkpoint.model_name import HubName
from pyllm.errors import ConfigError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = 10.0  # seconds for the list of a repository's files
_HEADED = frozenset({".safetensors", ".gguf"})
# Bytes that hold most headers of safetensors, the longest that the format allows, and bytes that hold one of GGUF,
# whose length no field gives: with a vocabulary of 256,000 tokens it has some 15 MB.
_BEGINNING, _LONGEST_HEADER, _GGUF_BEGINNING = 1 << 18, 100_000_008, 32 << 20
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


class Hub(msgspec.Struct, frozen=True, kw_only=True):
    """The hub and its cache folder. For None, huggingface_hub's environment variables decide."""

    endpoint: str | None = None
    cache_dir: str | None = None
    token: str | None = None
    offline: bool | None = None


class FoundModel(msgspec.Struct, frozen=True):
    """A model that the hub found. Its tags name formats, languages, licences and more."""

    id: str
    downloads: int = 0
    likes: int = 0
    tags: tuple[str, ...] = ()


class _Unreachable(Exception):  # noqa: N818  a reason to look into the cache, which becomes a ConfigError
    """The hub cannot be reached, or is busy."""


# A function that gets the needed files of a repository, and returns the path of the model, such as `collect`.
Collect = Callable[[HubName, Iterable[str], Callable[[str], Path]], Path]
# Gets a file, the number of its bytes that are there, and of all its bytes, on the thread of the download.
Report = Callable[[str, int, int], None]


def find_model(name: HubName, hub: Hub, collect: Collect = collect, report: Report | None = None) -> Path:
    """The GGUF file or the folder of a model, with files downloaded that are not in the cache.

    `collect` chooses the files. `report` takes the place of progress bars; an exception from it ends the download.

    Raises:
        ConfigError: the model does not exist, needs access rights, or cannot be downloaded now; the text gives a fix.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE if hub.offline is None else hub.offline:
        return _find_cached(name, hub, collect, "HF_HUB_OFFLINE is set: unset it to download")
    try:
        return _download(name, hub, collect, report)
    except _Unreachable as error:
        reason = f"cannot reach {_endpoint(hub)} ({error}): check the network, or HF_ENDPOINT"
        path = _find_cached(name, hub, collect, f"{reason}; the same command resumes a download")
        logger.warning("cannot reach %s (%s): using the cached copy of %s", _endpoint(hub), error, name.text)
        return path


def outline_model(name: HubName, hub: Hub, folder: Path) -> Path:
    """Download a model's files into `folder`, of weights only the headers; returns the path as `find_model` does.

    Files of weights have their full size: the rest reads as zeros and takes no disk space. The cache is not written.

    Raises:
        ConfigError: as `find_model`.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE if hub.offline is None else hub.offline:
        raise ConfigError(f"{name.text} is not on this machine, and HF_HUB_OFFLINE is set: unset it to ask the hub")
    try:
        return _download_outline(name, hub, folder)
    except _Unreachable as error:
        reason = f"cannot reach {_endpoint(hub)} ({error}): check the network, or HF_ENDPOINT"
        raise ConfigError(f"{name.text} is not on this machine, and {reason}") from None


def search_models(words: str, hub: Hub, limit: int, tag: str = "") -> list[FoundModel]:
    """The models whose names have these words, and the tag if one is given; those that are downloaded most first.

    Raises:
        ConfigError: the hub cannot be asked; the text gives a fix.
    """
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented there, and imported from elsewhere
        build_hf_headers,
        get_session,
    )

    if constants.HF_HUB_OFFLINE if hub.offline is None else hub.offline:
        raise ConfigError("HF_HUB_OFFLINE is set: unset it to ask the hub")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It logs every request.
    # Not by HfApi, which asks a hub that is not there six times.
    asked = {"search": words, "sort": "downloads", "limit": str(limit)} | ({"filter": tag} if tag else {})
    headers = build_hf_headers(token=hub.token)
    try:
        response = get_session().get(f"{_endpoint(hub)}/api/models", params=asked, headers=headers, timeout=_TIMEOUT)
        if response.status_code != httpx2.codes.OK:
            raise ConfigError(f"{_endpoint(hub)} answers {response.status_code} to a search")
        return msgspec.json.decode(response.content, type=list[FoundModel])
    except httpx2.HTTPError as error:
        text = f"cannot reach {_endpoint(hub)} ({type(error).__name__}: {error}): check the network, or HF_ENDPOINT"
        raise ConfigError(text) from None
    except (msgspec.DecodeError, UnicodeDecodeError):  # A web page, such as a network's login page.
        raise ConfigError(f"the answer of {_endpoint(hub)} is not that of a Hugging Face hub") from None


def repository_folder(name: HubName, hub: Hub) -> Path:
    """The folder of a repository in the cache."""
    from huggingface_hub.file_download import repo_folder_name

    return _cache(hub) / repo_folder_name(repo_id=name.repository, repo_type="model")


def size_text(count: int) -> str:
    """A size for people to read: `1.23 GB`, `98 MB`, `0.4 MB`, `12 kB`."""
    if count >= 10**9:
        return f"{count / 1e9:.2f} GB"
    if count < 10**5:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.0f} MB" if count >= 10**7 else f"{count / 1e6:.1f} MB"


def _download(name: HubName, hub: Hub, collect: Collect, report: Report | None) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository, cache = name.repository, _cache(hub)
    with _errors(name, hub, cache):
        commit, sizes = _list_files(name, hub)

        def get(file: str) -> Path:
            cached = try_to_load_from_cache(repository, file, cache_dir=cache, revision=commit)
            if isinstance(cached, str):
                return Path(cached)
            logger.info("downloading %s of %s (%s)", file, repository, size_text(sizes.get(file, 0)))
            return Path(
                hf_hub_download(
                    repository,
                    file,
                    revision=commit,
                    cache_dir=cache,
                    token=hub.token,
                    endpoint=hub.endpoint,
                    tqdm_class=None if report is None else _progress_of(file, sizes.get(file, 0), report),
                )
            )

        path = collect(name, sizes, get)
        # Written last, so that without a network a complete model is found, though it may be an older one.
        _write_reference(repository_folder(name, hub) / "refs" / name.revision, commit)
    _say_which(name, path)
    return path


def _progress_of(file: str, size: int, report: Report) -> Any:
    """The class that huggingface_hub has in place of tqdm's bars: it reports the progress of one file."""

    class Progress:
        def __init__(self, *_: Any, initial: int = 0, total: int | None = None, **__: Any) -> None:
            self.n, self.total = initial, total or size

        def __enter__(self) -> "Progress":
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def update(self, count: float | None = 1) -> None:
            self.n += int(count or 0)
            report(file, self.n, self.total)

        def refresh(self) -> None:
            """Nothing is drawn."""

        close = refresh

    return Progress


def _download_outline(name: HubName, hub: Hub, folder: Path) -> Path:
    from huggingface_hub import hf_hub_download, hf_hub_url

    repository = name.repository
    with _errors(name, hub, folder):
        commit, sizes = _list_files(name, hub)

        def get(file: str) -> Path:
            if Path(file).suffix.lower() not in _HEADED:
                return Path(
                    hf_hub_download(
                        repository, file, revision=commit, local_dir=folder, token=hub.token, endpoint=hub.endpoint
                    )
                )
            url = hf_hub_url(repository, file, revision=commit, endpoint=hub.endpoint)
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_header(url, hub, is_gguf=path.suffix.lower() == ".gguf"))
            os.truncate(path, sizes.get(file) or path.stat().st_size)
            return path

        return collect(name, sizes, get)


def _header(url: str, hub: Hub, *, is_gguf: bool) -> bytes:
    """The beginning of a file of weights, with its whole header. A safetensors header begins with its length."""
    if is_gguf:
        return _beginning(url, hub, _GGUF_BEGINNING)
    content = _beginning(url, hub, _BEGINNING)
    length = 8 + int.from_bytes(content[:8], "little")
    return content if length <= len(content) else _beginning(url, hub, min(length, _LONGEST_HEADER))


def _beginning(url: str, hub: Hub, size: int) -> bytes:
    """The first `size` bytes of a file, or more; all of it if it is shorter."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented there, and imported from elsewhere
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    headers = build_hf_headers(token=hub.token) | {"Range": f"bytes=0-{size - 1}"}
    content = b""
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT) as response:
        hf_raise_for_status(response)
        for part in response.iter_bytes():  # A server without support for ranges sends the whole file.
            content += part
            if len(content) >= size:
                break
    return content[:size]


@contextmanager
def _errors(name: HubName, hub: Hub, place: Path) -> Iterator[None]:
    """Turns errors of a download to `place` into ConfigError or `_Unreachable`."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, XetDownloadError

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It logs every request.
    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"{name.text!r} is no name of a model: {error}") from None
    except LocalEntryNotFoundError as error:  # The hub is not reachable, and the cache has no such file.
        raise _Unreachable(type(error.__cause__ or error).__name__) from None
    except HfHubHTTPError as error:
        raise _refusal(error, name, hub) from None
    except (httpx2.HTTPError, XetDownloadError) as error:
        raise _Unreachable(f"{type(error).__name__}: {error}") from None
    except OSError as error:
        free = size_text(shutil.disk_usage(next(there for there in (place, *place.parents) if there.exists())).free)
        raise ConfigError(
            f"cannot download {name.text} to {place}, which has {free} free: {error.strerror or error}; free some, or "
            "set HF_HUB_CACHE to another folder"
        ) from None


def _list_files(name: HubName, hub: Hub) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and the sizes of its files by name."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    try:
        info = api.model_info(name.repository, revision=name.revision, files_metadata=True, timeout=_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        raise
    except (ValueError, LookupError, AttributeError, TypeError):  # A web page, such as a network's login page.
        raise _Unreachable("its answer is not that of a Hugging Face hub") from None
    if info.sha is None or not _COMMIT.fullmatch(info.sha):
        raise _Unreachable("its answer names no commit")
    return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _refusal(error: "HfHubHTTPError", name: HubName, hub: Hub) -> ConfigError | _Unreachable:
    """The error for an error response of the hub. Its text may hold addresses with secrets, so it is not repeated."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page, status = f"{_endpoint(hub)}/{name.repository}", error.response.status_code
    has_token = bool(hub.token or get_token())
    if status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR:
        return _Unreachable(f"it answers {status}")
    if isinstance(error, GatedRepoError):
        token = "use a token of that account" if has_token else "set HF_TOKEN to a token of that account"
        return ConfigError(f"{name.repository} is gated: accept its terms at {page}, and {token}")
    if isinstance(error, RepositoryNotFoundError):
        token = "your token cannot see it" if has_token else "set HF_TOKEN"
        return ConfigError(
            f"there is no model {name.repository} at {_endpoint(hub)}, nor a file or folder of that name here; if it "
            f"is private, {token}"
        )
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(f"{name.repository} has no revision {name.revision!r}; {page}/tree/main lists branches")
    if status in {401, 403}:
        return ConfigError(f"{_endpoint(hub)} does not let you read {name.repository} ({status}): check HF_TOKEN")
    return ConfigError(f"{_endpoint(hub)} answers {status} to a request for {name.text}")


def _find_cached(name: HubName, hub: Hub, collect: Collect, reason: str) -> Path:
    folder = repository_folder(name, hub)
    try:
        commit = name.revision
        if not _COMMIT.fullmatch(commit):
            commit = (folder / "refs" / commit).read_text().strip()
        snapshot = folder / "snapshots" / commit
        names = [str(path.relative_to(snapshot)) for path in sorted(snapshot.rglob("*")) if path.is_file()]
    except OSError:
        names = []
    if not names:
        raise ConfigError(f"{name.text} is not in the cache {_cache(hub)}, and {reason}")

    def get(file: str) -> Path:
        if file not in names:
            raise ConfigError(f"{file} is missing")
        return snapshot / file

    try:
        path = collect(name, names, get)
    except ConfigError as error:
        raise ConfigError(f"the cached copy of {name.text} is not complete ({error}), and {reason}") from None
    _say_which(name, path)
    return path


def _say_which(name: HubName, path: Path) -> None:
    if path.suffix.lower() == ".gguf" and not name.file:
        logger.info("%s: taking %s", name.text, path.name)


def _write_reference(path: Path, commit: str) -> None:
    """Write the commit of a branch or tag to the cache, as huggingface_hub does.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    if not _COMMIT.fullmatch(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)


def _cache(hub: Hub) -> Path:
    from huggingface_hub import constants

    return Path(hub.cache_dir or constants.HF_HUB_CACHE).expanduser().absolute()


def _endpoint(hub: Hub) -> str:
    from huggingface_hub import constants

    return (hub.endpoint or constants.ENDPOINT).rstrip("/")
