"""CURVE keys for `tcp://`: make them, read them, and let in only clients whose public key is known.

A folder holds `server.key_secret`, `client.key_secret` and `clients/*.key`; `pyllm keygen` writes it. Give a client a
folder with `server.key` and `client.key_secret` only. ZeroMQ is imported at first use, as processes
without sockets know `CurveKeys`, too.
"""

import hmac
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pyllm.errors import ConfigError

if TYPE_CHECKING:
    import zmq
    from zmq.auth.asyncio import AsyncioAuthenticator
    from zmq.auth.thread import ThreadAuthenticator


class CurveKeys(msgspec.Struct, frozen=True):
    """One side's key pair, and for a client the server's public key."""

    public: bytes
    secret: bytes
    server: bytes = b""

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r})"  # Logs and reports must not have the secret key.


class KeyPairs(NamedTuple):
    """Key pairs of a server side and a client side."""

    server: CurveKeys
    client: CurveKeys


def key_pairs() -> KeyPairs:
    """Make fresh pairs; the caller decides whether to store them."""
    import zmq

    server, secret = zmq.curve_keypair()
    client, client_secret = zmq.curve_keypair()
    return KeyPairs(CurveKeys(server, secret), CurveKeys(client, client_secret, server))


def generate(folder: Path) -> None:
    """Write a fresh server and client key pair (files mode 0600) into a new folder.

    Raises:
        ConfigError: the folder already has keys.
    """
    import zmq.auth

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "server.key_secret").exists():
        raise ConfigError(f"{folder} holds keys already; remove them or choose another folder")
    for name in ("server", "client"):
        _, secret = zmq.auth.create_certificates(folder, name)
        os.chmod(secret, 0o600)
    (folder / "clients").mkdir(mode=0o700)
    shutil.copy(folder / "client.key", folder / "clients" / "client.key")


def write_server_keys(folder: Path, pairs: KeyPairs) -> None:
    """Write the server's part of the pairs into a new folder that only its user can read, as `generate` does."""
    folder.mkdir(mode=0o700)
    (folder / "clients").mkdir(mode=0o700)
    _write_secret(folder / "server.key_secret", pairs.server)
    (folder / "clients" / "client.key").write_text(_certificate(pairs.client.public))


def write_client_keys(folder: Path, keys: CurveKeys) -> None:
    """Write a client's keys into a new folder that only its user can read, for `client_keys`."""
    folder.mkdir(mode=0o700)
    _write_secret(folder / "client.key_secret", keys)
    (folder / "server.key").write_text(_certificate(keys.server))


def _write_secret(path: Path, keys: CurveKeys) -> None:
    with open(path, "x", opener=_private) as file:
        file.write(_certificate(keys.public, keys.secret))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _certificate(public: bytes, secret: bytes | None = None) -> str:
    """A key in the format of ZeroMQ's certificate files."""
    lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def server_keys(folder: Path) -> CurveKeys:
    """The core's key pair. Raises ConfigError where it is missing."""
    return CurveKeys(*_load(folder / "server.key_secret"))


def client_keys(folder: Path) -> CurveKeys:
    """A client's key pair and the server's public key. Raises ConfigError where one is missing."""
    server, _ = _load(folder / "server.key", secret=False)
    return CurveKeys(*_load(folder / "client.key_secret"), server)


def authenticate(context: "zmq.Context[zmq.Socket[bytes]]", folder: Path) -> "AsyncioAuthenticator":
    """Admit on this context only clients whose public key lies in `folder/clients`; stop the result when done."""
    from zmq.auth.asyncio import AsyncioAuthenticator

    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=folder / "clients")
    return authenticator


def admit(context: "zmq.Context[zmq.Socket[bytes]]", client: bytes) -> "ThreadAuthenticator":
    """Admit on this context only the client with this public key, from a thread; stop the result when done."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", _OnlyClient(client))
    return authenticator


class _OnlyClient:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with this public key may connect; the authenticator calls it."""
        del domain
        return hmac.compare_digest(key, self._key)


def _load(path: Path, secret: bool = True) -> tuple[bytes, bytes]:
    import zmq.auth

    try:
        public, private = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the key {path}: {error}; `pyllm keygen FOLDER` makes a set") from None
    if secret and private is None:
        raise ConfigError(f"{path} has no secret key")
    return public, private or b""
