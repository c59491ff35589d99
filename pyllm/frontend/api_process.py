"""An API process: tokenizer, engine client and HTTP server on a socket that its parent bound. Knows no other process.

Heavy imports are inside the functions, so that this process reports to its parent before they begin.
"""

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from pyllm import log
from pyllm.config.credentials import Credentials
from pyllm.config.engine_settings import LogConfig
from pyllm.config.process_config import ApiConfig
from pyllm.errors import GivenUpError, PyllmError
from pyllm.frontend.upkeep import log_stats, shed_reports
from pyllm.supervision.parent_link import ParentLink, attach
from pyllm.supervision.process_samples import ProcessSampler, load_nvml
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.supervision_messages import Kept

if TYPE_CHECKING:
    from pyllm.client.client import EngineClient
    from pyllm.frontend.observability.metrics import Metrics
    from pyllm.frontend.shared.remote_state import Shared
    from pyllm.supervision.memory_pressure import MemoryPressure

logger = logging.getLogger(__name__)

# A token creates no reference cycles: rare collections that skip the objects of start-up halve the longest pause. A
# request is a cycle of some 80 objects. One that runs while the youngest generation is collected is freed only with the
# next older one, 2,500 requests later. With 20 in place of 4, 6 MB of such requests gathered.
GC_THRESHOLDS = (50_000, 4, 20)
# Seconds for which a thread may hold the GIL while another waits. Delivering a token acquires the GIL several times,
# and would each time wait for Python's default of 5 ms while another thread renders a long conversation.
SWITCH_INTERVAL = 0.001
PREPARE_DELAY = 1.0  # seconds after the start, until what a first long text needs is worked out


def main(config: ApiConfig, connection: Connection, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT, let running requests finish, and give the exit code.

    `connection` leads to the parent: this process sends stages, heartbeats and the server's start on it, and ends when
    the parent closes it. `listener` is bound.
    """
    return run_api(
        f"pyllm::api-{config.index}", config.log, connection, lambda parent: _serve(config, listener, parent)
    )


def run_api(
    title: str, log_config: LogConfig, connection: Connection, serve: Callable[[ParentLink], Coroutine[Any, Any, int]]
) -> int:
    """Make this process an API process, `serve` until it ends, and give the exit code."""
    parent = attach(connection, title)
    log.configure_child(title, log_config)
    # uvicorn logs a warning for each malformed request: these would fill any log, and a full pipe stops the server.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return parent.run(lambda: uvloop.run(serve(parent)))


def tune_interpreter() -> None:
    """Prepare the interpreter for requests: what the start has made is never collected."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(SWITCH_INTERVAL)


def import_application() -> None:
    """Import the web application, and collect no garbage until `tune_interpreter`: a start leaves almost none.

    A process that was started before its configuration is known calls it before that arrives.
    """
    gc.disable()
    import pyllm.frontend.app
    import pyllm.frontend.http_server  # noqa: F401


async def _serve(config: ApiConfig, listener: socket.socket, parent: ParentLink) -> int:
    parent.enter("importing the frontend")
    import_application()
    from pyllm.frontend.app import create_app
    from pyllm.frontend.http_server import HttpServer
    from pyllm.frontend.requests.server_cores import ServerCores
    from pyllm.frontend.requests.server_state import ServerState
    from pyllm.frontend.text.templates import ChatTemplate
    from pyllm.frontend.text.tokenizer import Tokenizer
    from pyllm.supervision.memory_pressure import MemoryPressure

    parent.enter("loading the tokenizer")
    files = config.checkpoint.tokenizer
    tokenizer, chat_template = Tokenizer(files), ChatTemplate.of(files)
    parent.enter("waiting for the shared state")
    shared = await _shared_state(config, parent)
    parent.enter("waiting for the cores")
    cores = await ServerCores.connect(config, shared)
    client = cores.client
    state = ServerState.of(
        config,
        cores,
        shared,
        tokenizer,
        chat_template,
        parent_silence=lambda: parent.parent_silence,
        sampler=ProcessSampler(lambda: [os.getppid()], nvml=load_nvml(), restarts=lambda: parent.restarts),
        ask_reload=parent.ask_reload,
    )
    parent.enter("opening the server")
    server = HttpServer(create_app(state), state, config.server.shutdown_timeout, parent.started)
    tune_interpreter()
    asyncio.get_running_loop().call_later(PREPARE_DELAY, tokenizer.prepare)
    pressure = MemoryPressure([state.prompts.resize_cache, shared.resize])
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    tending = _tend(parent, client, shared, state.metrics, pressure)
    following = _follow(parent, state.credentials.replace)
    works = (tending, following, cores.follow(), state.history.follow())
    beside = [asyncio.ensure_future(work) for work in works]
    death = asyncio.ensure_future(client.death())
    # One API process logs for all of them.
    speaks = config.index == 0 and not config.server.disable_log_stats
    telling = asyncio.ensure_future(log_stats(client, shared, state.metrics)) if speaks else None
    try:
        await _watch(serving, beside, death, server.stop)
    finally:
        for task in (*beside, death, *((telling,) if telling else ())):
            task.cancel()
        shared.close()
        client.close()
        if state.tracer is not None:
            state.tracer.close()
    return 0


async def _watch(
    serving: asyncio.Future[None],
    beside: Sequence[asyncio.Future[None]],
    death: asyncio.Future[PyllmError],
    stop: Callable[[], None],
) -> None:
    """Wait until the server has ended; raises the error that ended it: a background task's, or that no core is left."""
    any_of_them: set[asyncio.Future[Any]] = {serving, *beside, death}
    await asyncio.wait(any_of_them, return_when=asyncio.FIRST_COMPLETED)
    for ended in beside:
        if ended.done():
            ended.result()  # Report the error to the parent now, before it misses heartbeats.
    if not serving.done():
        stop()  # The streams have ended with this error, and the parent must get it.
        await serving
        raise death.result()
    serving.result()


async def _shared_state(config: ApiConfig, parent: ParentLink) -> "Shared":
    """The state that API processes share: in another process, or in this one if it is the only API process."""
    from pyllm.frontend.shared.local_state import LocalState
    from pyllm.frontend.shared.remote_state import RemoteState
    from pyllm.frontend.shared.shared_state import SharedState

    if config.state_address:
        return await RemoteState.connect(config.state_address, config.server.ready_timeout)
    return LocalState(SharedState(config.shared, on_cores=lambda cores: parent.keep(Kept(cores=cores))))


async def _follow(parent: ParentLink, replace: Callable[[Credentials], None]) -> None:
    """Use the keys and the certificate that the parent sends."""
    seen = b""
    while True:
        await asyncio.sleep(HEARTBEAT_INTERVAL)
        if parent.news is not seen:
            seen = parent.news
            replace(msgspec.msgpack.decode(seen, type=Credentials))


async def _tend(
    parent: ParentLink, client: "EngineClient", shared: "Shared", metrics: "Metrics", pressure: "MemoryPressure"
) -> None:
    """Twice a second, send heartbeats to parent and shared state, and check for degradations and a given-up engine."""
    look = shed_reports(metrics)
    while True:
        parent.pulse()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
        if parent.given_up:
            client.give_up(GivenUpError(parent.given_up))
        look()
        metrics.degradations["host_memory"] += pressure.look()
        shared.beat(metrics.counted())
