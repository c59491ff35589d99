"""API keys, and the limits of their accounts. Knows neither requests nor their counters.

A key is 256 random bits, so a plain SHA-256 is enough: it cannot be guessed, and needs neither salt nor a slow hash.
Keys themselves are never stored.
"""

import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pyllm.errors import ConfigError

# The environment variable that may hold a key, and the name of that key.
VARIABLE = "PYLLM_API_KEY"
VARIABLE_NAME = "default"

Limit = Annotated[int, Meta(ge=0, le=1 << 53)]
# An admin may also use the routes below /admin, which show or change more than the admin's own requests.
Role = Literal["user", "admin"]

logger = logging.getLogger(__name__)


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one account; 0: no limit."""

    max_requests_per_minute: Limit = 0
    max_tokens_per_minute: Limit = 0
    max_concurrent_requests: Limit = 0


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key. `name` is the tenant of its requests; limits that are None are the server's."""

    name: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^(?!\s*$)[^\x00-\x1f\x7f]*$")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    role: Role = "user"
    max_requests_per_minute: Limit | None = None
    max_tokens_per_minute: Limit | None = None
    max_concurrent_requests: Limit | None = None

    def allowance(self, default: Allowance) -> Allowance:
        """The limits of the key; for those that it does not set, the server's `default`."""
        own = {name: value for name in Allowance.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(default, **own)


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[ApiKey, ...]


class KeyRing:
    """The keys that a server accepts; without any, requests need no key."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self.replace(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def entries(self) -> tuple[ApiKey, ...]:
        """All keys."""
        return tuple(key for _, key in self._keys)

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """Accept these keys from now on, and no others."""
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]

    @property
    def has_admin(self) -> bool:
        """Whether a key has the role admin."""
        return any(key.role == "admin" for _, key in self._keys)

    def find(self, presented: bytes) -> ApiKey | None:
        """The entry of a key; None if it is unknown. Takes the same time for every key, known, similar or unknown."""
        digest = hashlib.sha256(presented).digest()
        found = None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def new_key(name: str, role: Role = "user") -> tuple[str, str]:
    """A fresh key, and its entry for the file.

    Raises:
        ConfigError: the name is empty, too long, or has control characters.
    """
    key = f"sk-{secrets.token_urlsafe(32)}"
    entry = {"name": name, "sha256": _hash(key), **({} if role == "user" else {"role": role})}
    try:
        msgspec.convert(entry, ApiKey)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this cannot be a key's name: {error}") from None
    return key, msgspec.json.encode(entry).decode()


def read_api_keys(file: str, environment: Mapping[str, str] = os.environ) -> tuple[ApiKey, ...]:
    """The keys of a JSON or TOML file, if one is named, and that of the environment variable, if it is set.

    Raises:
        ConfigError: the file cannot be read, has a wrong or no entry, or two of one name with different limits.
    """
    keys = _read_file(Path(file)) if file else ()
    key = environment.get(VARIABLE)
    if key is not None:
        if not key.isascii() or not key.isprintable() or not key.strip():
            raise ConfigError(f"{VARIABLE} is empty or has characters that no header can carry; make one: pyllm apikey")
        keys = (*keys, ApiKey(name=VARIABLE_NAME, sha256=_hash(key)))
    check_accounts(keys)
    return keys


def check_accounts(keys: Sequence[ApiKey]) -> None:
    """Raise `ConfigError` if keys of one name, which are one account, have different limits."""
    limits: dict[str, Allowance] = {}
    for each in keys:
        allowance = each.allowance(Allowance())
        if limits.setdefault(each.name, allowance) != allowance:
            raise ConfigError(f"the keys of {each.name!r} are one account: give them the same limits")


def flag_keys(keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """The entries of keys that were given as a flag: one account, without limits of its own.

    Raises:
        ConfigError: one has characters that no header can carry.
    """
    for key in keys:
        if not key.isascii() or not key.isprintable() or not key.strip():
            raise ConfigError("a key of api_key is empty or has characters that no header can carry")
    return tuple(ApiKey(name=VARIABLE_NAME, sha256=_hash(key)) for key in keys)


def _read_file(path: Path) -> tuple[ApiKey, ...]:
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read the API keys in {path}: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s is open to other users; they learn who has keys: chmod 600 it", path)
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        keys = decode(data, type=_KeyFile).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API keys in {path}: {error}") from None
    if not keys:
        raise ConfigError(f"{path} has no API key, so nobody could use the server; make one with: pyllm apikey NAME")
    return keys


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
