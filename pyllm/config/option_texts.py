"""Parsers of option texts: sizes, counts, weights, lists, objects, origins, hosts. Knows no option by name."""

import re
from typing import Any

import msgspec

from pyllm.errors import ConfigError

_POWERS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str, unit: int = 1) -> int:
    """Bytes from `64MiB`, `64Mi`, `64M` (all 2**20), `64m` (10**6) or a plain number, as vLLM's flags read them.

    A plain number counts `unit` bytes.

    Raises:
        ConfigError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]|[KMGT](?:iB?)?)?", text.strip())
    if match is None:
        raise ConfigError(f"cannot read {text!r} as a size; write for example 64MiB, 2GiB or 1073741824")
    number, suffix = match.groups()
    if not suffix:
        return int(float(number) * unit)
    power = "kmgt".index(suffix[0].lower()) + 1
    return int(float(number) * (1000**power if suffix.islower() else 1024**power))


def parse_count(text: str) -> int:
    """A number from `8192`, `8k` (8,000), `25.6k` (25,600) or `8K` (8,192), as vLLM's flags read them.

    Raises:
        ConfigError: anything else.
    """
    match = re.fullmatch(r"(-?\d+)|(\d+(?:\.\d+)?)([kmg])|(\d+)([KMG])", text.strip())
    if match is None:
        raise ConfigError(f"cannot read {text!r:.80} as a whole number; write for example 8192, 8k (8000) or 8K (8192)")
    plain, decimal, decimal_suffix, binary, binary_suffix = match.groups()
    if plain:
        return int(plain)
    if decimal:
        return round(float(decimal) * _POWERS[decimal_suffix])
    return int(binary) * _POWERS[binary_suffix]


def parse_weights(text: str) -> dict[str, int]:
    """Weights by name from `team-a=3,team-b=1`; none from an empty text.

    Raises:
        ConfigError: anything else, or a name that occurs twice.
    """
    weights: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        name, _, weight = (piece.strip() for piece in part.rpartition("="))
        if not name or not weight.isdecimal() or name in weights:
            raise ConfigError(
                f"cannot read {part!r} as a tenant's weight; write each tenant once, as in team-a=3,team-b=1"
            )
        weights[name] = int(weight)
    return weights


def parse_list(name: str, text: str) -> tuple[str, ...]:
    """Words from `a,b`, or from a JSON list, as vLLM's flags have it; none from an empty text.

    Raises:
        ConfigError: the text begins like a JSON list, but is no list of texts.
    """
    if not text.strip():
        return ()
    try:
        words = msgspec.json.decode(text, type=list[str]) if text.startswith("[") else text.split(",")
    except msgspec.DecodeError:
        raise ConfigError(f"cannot read {text!r:.80} as {name}; write words separated by commas") from None
    return tuple(word.strip() for word in words)


def parse_object(name: str, text: str) -> dict[str, Any]:
    """An object from its JSON.

    Raises:
        ConfigError: the text is no JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} must be a JSON object, got {text!r:.80}: {error}") from None


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins from `https://a.com,https://b.com`, or from a JSON list, as vLLM's flag has it; `*` is any.

    Raises:
        ConfigError: one is no origin; an origin is a scheme and a host, with or without a port.
    """
    try:
        origins = parse_list("origins", text)
    except ConfigError:
        raise ConfigError(f"cannot read {text!r} as origins; write https://a.com,https://b.com, or *") from None
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s,]+", origin):
            raise ConfigError(f"{origin!r} is not an origin; write for example https://a.com (no path), or *")
    return origins


def parse_hosts(text: str) -> tuple[str, ...]:
    """Hosts from `llm.example.com,10.0.0.1`, without scheme and port.

    Raises:
        ConfigError: one is neither a name nor an address.
    """
    hosts = [host.strip() for host in text.split(",")]
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:]+\]?", host):
            raise ConfigError(f"{host!r} is not a host; write for example llm.example.com (no scheme, no port)")
    return tuple(host.strip("[]") for host in hosts)
