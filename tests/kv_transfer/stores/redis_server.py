"""A real redis-server for one test, and ports without a Redis behind them."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services import service_program


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The process, once it accepts connections on `redis.sock` in the folder. `options` are more arguments."""
    fixed = ("--dir", str(folder), "--unixsocket", str(folder / "redis.sock"), "--save", "", "--appendonly", "no")
    command = [service_program("redis-server"), *fixed, *(() if "--port" in options else ("--port", "0")), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "accept connections at" in line:
                    break
            else:
                raise AssertionError("".join(lines))
            # Somebody must read its log, or it would wait at some point.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process
        finally:
            process.kill()


@contextmanager
def listener(answer: bytes) -> Iterator[int]:
    """The port of a server that sends these bytes to every connection, and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                connection.sendall(answer)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
