"""The common ground of servers: the supervisor's process, its address, the line that says it is ready."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec
from setproctitle import setproctitle

from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.config.server_settings import ServerConfig
from pyllm.launch.service_manager import ServiceManager
from pyllm.supervision import line_writer
from pyllm.supervision.json_log import is_json
from pyllm.supervision.parent_link import keep_exit_codes
from pyllm.supervision.server_processes import supervise
from pyllm.supervision.supervised_process import Supervised
from pyllm.wire.listeners import bind_listener, bind_unix_listener, claim_address, claim_path

logger = logging.getLogger(__name__)


def become_supervisor() -> None:
    """Give this process its title, and its own handling of SIGCHLD and SIGUSR1."""
    setproctitle("pyllm::serve")
    gc.disable()  # Until all is resolved, which leaves almost no garbage.
    keep_exit_codes()
    # Service managers send SIGUSR1 for a reload; by default it would end the process.
    signal.signal(signal.SIGUSR1, lambda *_: logger.info("SIGUSR1: this process has nothing to read again"))


def run_supervised(
    groups: Sequence[Sequence[Supervised]],
    announcement: Callable[[list[str]], str],
    shutdown_timeout: float,
    on_ending: Callable[[], None] = lambda: None,
    work: Callable[[], Awaitable[None]] | None = None,
    *,
    replicas: Collection[Supervised] = (),
) -> None:
    """Run `supervise` on an event loop of its own, and write the rest of the log."""
    gc.freeze()
    gc.enable()
    try:
        asyncio.run(supervise(groups, announcement, shutdown_timeout, on_ending, work, replicas=replicas))
    finally:
        line_writer.stderr().finish()  # Flush: the last line gives the reason of an end.


def say_ready(service: ServiceManager, address: str, line: str) -> str:
    """Report that the server is ready; returns the line to print, or nothing where a JSON log has a record instead."""
    service.ready()
    if not is_json():
        return line
    logger.info("pyllm is ready on %s", address, extra={"fields": {"event": "ready", "address": address}})
    return ""


def announcement_of(
    listener: socket.socket,
    server: ServerConfig,
    model: str,
    *,
    has_keys: bool,
    can_chat: bool,
    embedding: EmbeddingSpec | None = None,
) -> tuple[str, str]:
    """The address, and the text printed when the server is ready: a request to try, and the page in another line."""
    route, fields = _request_to_try(embedding)
    body = msgspec.json.encode({"model": model, **fields}).decode()
    key = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    scheme = "https" if server.ssl_certfile else "http"
    if listener.family == socket.AF_UNIX:
        path = listener.getsockname()
        where, address = f"unix:{path}", f"--unix-socket {path} {scheme}://localhost"
    else:
        host, port = listener.getsockname()[:2]
        where = address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    command = f"curl {address}{route}{key} -H 'Content-Type: application/json' -d '{body}'"
    contents = "chat, routes and engine" if can_chat else "routes and engine"
    page = f"\n  {contents} in a browser: {where}{server.root_path}/"
    line = f"pyllm is ready on {where} - try: {command}{'' if listener.family == socket.AF_UNIX else page}"
    return where, line


def _request_to_try(embedding: EmbeddingSpec | None) -> tuple[str, dict[str, Any]]:
    """The route and the fields of a request that a model can answer."""
    text = "The capital of France is"
    if embedding is None or not embedding.is_only_use:
        return "/v1/completions", {"prompt": text, "max_tokens": 16}
    if not embedding.labels:
        return "/v1/embeddings", {"input": text}
    if embedding.relevant_class is None:
        return "/classify", {"input": text}
    return "/v1/rerank", {"query": "capital of France", "documents": ["Lyon is a city.", "Paris is the capital."]}


def claim_server(server: ServerConfig) -> contextlib.AbstractContextManager[object]:
    """Holds the server's address until it listens there; port 0 needs no claim."""
    if server.uds:
        return claim_path(server.uds)
    return claim_address(f"{server.host}:{server.port}") if server.port else contextlib.nullcontext()


def open_listener(server: ServerConfig) -> contextlib.AbstractContextManager[socket.socket]:
    """The server's listening socket, bound."""
    return bind_unix_listener(server.uds) if server.uds else bind_listener(server.host, server.port)
