"""A model's name as users write it: a path on this machine, or a repository of the Hugging Face hub.

Downloads nothing (`hub.py` does) and reads no model.
"""

import re
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError

FORMS = "owner/repo, owner/repo:Q4_K_M, owner/repo@revision or owner/repo/file.gguf"

_HOSTS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
# A browser's address: repository, revision, then the file.
_ADDRESS = re.compile(r"([^/]+/[^/]+)/(?:tree|blob|resolve)/([^/]+)/?(.*?)(?:\?.*)?")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_NAME = re.compile(
    r"(?P<repository>[^/:@]+/[^/:@]+)(?:/(?P<file>[^:@]+))?"
    r"(?:(?::(?P<quantization>[\w.-]+))?(?:@(?P<revision>[^:@]+))?"
    r"|@(?P<first_revision>[^:@]+):(?P<last_quantization>[\w.-]+))"
)


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of the hub, with revision and file or quantization. `text` is the name as it was written."""

    text: str
    repository: str
    revision: str = "main"
    has_revision: bool = False
    quantization: str = ""
    file: str = ""


def parse_model(text: str) -> Path | HubName:
    """The path or hub name that `text` means. An existing path wins, and so does a text that can only be a path.

    Raises:
        ConfigError: it is neither.
    """
    path = Path(text).expanduser()
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."} or path.exists():
        return path.absolute()
    # Without the host, `word/word.gguf` is a missing file, not a repository.
    if not _HOSTS.match(text) and (text.count("/") == 0 or (text.count("/") == 1 and text.lower().endswith(".gguf"))):
        raise _unknown(text)
    return parse_hub_name(text)


def parse_hub_name(text: str) -> HubName:
    """The hub name in `text`, even if a path of that name exists.

    Raises:
        ConfigError: it is no name of the hub.
    """
    name, has_host = _HOSTS.subn("", text, count=1)
    address = _ADDRESS.fullmatch(name) if has_host else None
    if address is not None:
        repository, revision, file = address.groups()
        found = HubName(text=text, repository=repository, revision=revision, has_revision=True, file=file)
    else:
        match = _NAME.fullmatch(name.rstrip("/") if has_host else name)
        if match is None:
            raise _unknown(text)
        quantization = match["quantization"] or match["last_quantization"] or ""
        revision = match["revision"] or match["first_revision"] or ""
        found = HubName(
            text=text,
            repository=match["repository"],
            revision=revision or "main",
            has_revision=bool(revision),
            quantization="" if quantization.lower() == "latest" else quantization,  # Ollama's word for no choice.
            file=match["file"] or "",
        )
    if found.file and (not found.file.lower().endswith(".gguf") or found.quantization or not is_within(found.file)):
        raise _unknown(text)
    if not _REPOSITORY.fullmatch(found.repository) or ".." in found.repository or not is_within(found.revision):
        raise _unknown(text)
    return found


def at_revision(text: str, revision: str, option: str) -> str:
    """The name of a model with a revision, if that is not empty. `option` names the setting in errors.

    Raises:
        ConfigError: the name is not that of a hub model, or has another revision.
    """
    if not revision:
        return text
    name = parse_model(text) if text else None
    if not isinstance(name, HubName):
        raise ConfigError(f"{option} {revision!r} is for models of the hub, and this is {text or 'the embedded one'}")
    if name.has_revision and name.revision != revision:
        raise ConfigError(f"{text} names the revision {name.revision!r} already, not {revision!r}: leave {option} out")
    return text if name.has_revision else f"{text}@{revision}"


def is_within(name: str) -> bool:
    """Whether a relative path from a repository or an index stays in its folder."""
    return bool(name) and "\\" not in name and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _unknown(text: str) -> ConfigError:
    return ConfigError(
        f"there is no model at {Path(text).expanduser().absolute()}, and {text!r} is no name of the Hugging Face hub: "
        f"give a GGUF file or a Hugging Face folder on this machine, or {FORMS}"
    )
