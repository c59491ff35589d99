"""The sockets that a server listens on, and the claim of their addresses while its model still loads."""

import contextlib
import errno
import hashlib
import os
import socket
import stat
from collections.abc import Generator

from pyllm.errors import ConfigError
from pyllm.wire.sockets import lock_file


def claim_address(address: str) -> socket.socket:
    """Claim HOST:PORT against other pyllm processes until the claim is closed, also before a socket listens there.

    Linux lets two sockets bind to one port until one of them listens. The claim is an abstract socket name: like a
    port, it belongs to the network namespace, and it ends with the process.

    Raises:
        ConfigError: another process has claimed it.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0pyllm {hashlib.sha256(address.encode()).hexdigest()}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise _claimed(address) from None
    return claim


@contextlib.contextmanager
def claim_path(path: str) -> Generator[None, None, None]:
    """Claim a socket's path, which looks stale while its server loads, by a locked file beside it.

    Raises:
        ConfigError: another process has claimed it, or no file can be made in its folder.
    """
    file = f"{os.path.realpath(path)}.lock"
    while True:
        try:
            descriptor = lock_file(file, os.O_CREAT)
        except BlockingIOError:
            raise _claimed(path) from None
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {path}: {error.strerror}; choose another --uds, --bind or --kv-events-endpoint"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(file), os.fstat(descriptor)):
                break
        os.close(descriptor)  # Its owner has removed the file meanwhile.
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(file)
        os.close(descriptor)


def claim_endpoint(address: str) -> contextlib.AbstractContextManager[object]:
    """Claim a ZeroMQ address before it is bound: libzmq would take over the path of another process.

    A wildcard port, an abstract name and `inproc://` need no claim.

    Raises:
        ConfigError: another process has claimed it, or no file can be made in its folder.
    """
    transport, _, place = address.partition("://")
    if transport == "ipc" and not place.startswith("@"):
        return claim_path(place)
    is_free = transport != "tcp" or place.endswith((":0", ":*"))
    return contextlib.nullcontext() if is_free else claim_address(address)


def _claimed(address: str) -> ConfigError:
    return ConfigError(
        f"cannot listen on {address}: another pyllm that is starting, or that runs, has this address; "
        "choose another, or end that one first"
    )


def listen(listener: socket.socket, backlog: int) -> None:
    """Listen on a socket of `bind_listener` or `bind_unix_listener`; no effect if it listens already.

    Raises:
        ConfigError: another process has begun to listen there since it was bound.
    """
    try:
        listener.listen(backlog)
    except OSError as error:
        name = listener.getsockname()
        address = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror}; another process has taken it while this one was starting: "
            "choose another --host or --port, or end that one first"
        ) from None


def bind_listener(host: str, port: int) -> socket.socket:
    """A socket bound to an address. The API processes inherit it, and listen on it.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from None
    return listener


@contextlib.contextmanager
def bind_unix_listener(path: str) -> Generator[socket.socket, None, None]:
    """A socket bound to a path, for the user and the group (mode 0660); the path is removed at the end.

    A stale socket at the path, which no process listens on, is replaced.

    Raises:
        ConfigError: the path cannot be bound, or is in use.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        os.chmod(path, 0o660)  # No client can connect before a process listens.
        made = os.stat(path)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another --uds") from None
    try:
        yield listener
    finally:
        listener.close()
        # The path stays if another server has taken it meanwhile.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), made):
                os.unlink(path)


def _remove_stale(path: str) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(f"{path} is there, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError("another server listens there")
