"""A model's name as users write it: a path on this machine, a short name, or a repository of the Hugging Face hub.

Downloads nothing (`hub.py` does) and reads no model.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError

FORMS = "owner/repo, owner/repo:Q4_K_M, owner/repo@revision, owner/repo/file.gguf or a short name such as qwen3:4b"

_HOSTS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
# A browser's address: repository, revision, then the file.
_ADDRESS = re.compile(r"([^/]+/[^/]+)/(?:tree|blob|resolve)/([^/]+)/?(.*?)(?:\?.*)?")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_NAME = re.compile(
    r"(?P<repository>[^/:@]+/[^/:@]+)(?:/(?P<file>[^:@]+))?"
    r"(?:(?::(?P<quantization>[\w.-]+))?(?:@(?P<revision>[^:@]+))?"
    r"|@(?P<first_revision>[^:@]+):(?P<last_quantization>[\w.-]+))"
)


_LATEST = "latest"
_TAGGED = re.compile(r"(?P<name>[^/:@]+)(?::(?P<tag>[^/:@]+))?(?:@(?P<revision>[^:@]+))?")
# A quantization behind a tag, as in `qwen3:4b-q8_0`; Ollama calls F16 so.
_QUANTIZED = re.compile(r"(?P<tag>.+)-(?P<quantization>(?:iq|q|fp|bf|f)\d\w*)", re.IGNORECASE)
_FP16 = "FP16"


class ShortName(msgspec.Struct, frozen=True):
    """A row of `short_names.txt`: a name with its tag, the model's name on the hub, and the size of its file."""

    name: str
    model: str
    num_bytes: int


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

    A short name is that of a model on the hub.

    Raises:
        ConfigError: it is neither.
    """
    path = Path(text).expanduser()
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."} or path.exists():
        return path.absolute()
    if (short := find_short_name(text)) is not None:
        return short
    # Without the host, `word/word.gguf` is a missing file, not a repository.
    if not _HOSTS.match(text) and (text.count("/") == 0 or (text.count("/") == 1 and text.lower().endswith(".gguf"))):
        raise _unknown(text)
    return parse_hub_name(text)


@cache
def short_names() -> Mapping[str, ShortName]:
    """The table of short names, by each name with a tag."""
    names = {}
    text = resources.files("pyllm.checkpoint").joinpath("short_names.txt").read_text()
    for row in text.splitlines():
        if not row.startswith("#"):
            tagged, model, gigabytes = row.split()
            name, _, tags = tagged.partition(":")
            first = tags.split(",")[0]
            short = ShortName(f"{name}:{first}", model, round(float(gigabytes) * 1e9))
            names.update(dict.fromkeys((f"{name}:{tag}" for tag in tags.split(",")), short))
    return names


def find_short_name(text: str) -> HubName | None:
    """The hub name that a short name means, with the revision and the quantization behind it; None for other texts."""
    match = _TAGGED.fullmatch(text.lower())
    if match is None:
        return None
    name, tag, quantization = match["name"], match["tag"] or _LATEST, ""
    found = short_names().get(f"{name}:{tag}")
    if found is None and (quantized := _QUANTIZED.fullmatch(tag)) is not None:
        found, quantization = short_names().get(f"{name}:{quantized['tag']}"), quantized["quantization"].upper()
    if found is None:
        return None
    hub_name = parse_hub_name(found.model)
    revision = text.partition("@")[2]  # as it is written: branches know upper and lower case
    return msgspec.structs.replace(
        hub_name,
        text=text,
        quantization={"": hub_name.quantization, _FP16: "F16"}.get(quantization, quantization),
        revision=revision or hub_name.revision,
        has_revision=bool(revision),
    )


def parse_hub_name(text: str) -> HubName:
    """The hub name in `text`, even if a path of that name exists.

    Raises:
        ConfigError: it is no name of the hub.
    """
    if (short := find_short_name(text)) is not None:
        return short
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
