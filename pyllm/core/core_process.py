"""The EngineCore process: its socket, its signals, the drain at its end.

Its caller passes the executor, so this file knows nothing of workers. Does not know its parent's role.
"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Coroutine
from mmap import mmap
from pathlib import Path
from typing import Any

import uvloop
import zmq

from pyllm.config.process_config import CoreConfig
from pyllm.core.composition import Surroundings, compose
from pyllm.core.executors.executor import Executor
from pyllm.core.kv.event_publisher import EventPublisher, claim_addresses
from pyllm.core.loop import EngineCore
from pyllm.core.startup import start
from pyllm.errors import ConfigError, StartError
from pyllm.supervision.burst_logger import BurstLogger
from pyllm.supervision.log_level import set_log_level
from pyllm.supervision.parent_link import ParentLink
from pyllm.wire import curve, ipc
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import ClientMessage, CoreMessage

# Seconds for clients to read the last messages of a core.
CLOSE_LINGER = 2.0

logger = logging.getLogger(__name__)


def run(
    config: CoreConfig,
    executor: Executor,
    context: zmq.Context[zmq.Socket[bytes]],
    parent: ParentLink,
    memory: mmap | None = None,
) -> int:
    """Serve until SIGTERM, then drain; the exit code is 0 unless workers died too often or did not start.

    `memory` outlives this process, see `Surroundings`.
    """

    def serve() -> int:
        with claim_addresses(config.engine.kv_events):
            return uvloop.run(_serve(config, executor, context, parent, memory))

    try:
        return parent.run(serve)
    finally:
        context.destroy(int(CLOSE_LINGER * 1000))


async def _serve(
    config: CoreConfig,
    executor: Executor,
    context: zmq.Context[zmq.Socket[bytes]],
    parent: ParentLink,
    memory: mmap | None,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    keys = curve.server_keys(Path(config.curve_keys)) if config.curve_keys else None
    authenticator = curve.authenticate(context, Path(config.curve_keys)) if config.curve_keys else None
    # Bound before the model is loaded: early clients wait in the socket's queue, not in a retry loop.
    os.umask(0o077)  # An ipc:// socket is a file; only its owner may connect.
    try:
        socket = ipc.bind(context, zmq.ROUTER, config.bind, keys)
    except zmq.ZMQError as error:
        # An earlier core may still hold the address, so another start may succeed.
        kind = StartError if error.errno == zmq.EADDRINUSE else ConfigError
        raise kind(f"cannot listen on {config.bind}: {error.strerror}; choose another address") from None
    address = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    parent.enter("starting the workers")
    starting = asyncio.ensure_future(start(config, executor))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        core: EngineCore
        endpoint: ipc.Endpoint[ClientMessage, CoreMessage] = ipc.Endpoint(
            socket,
            ClientMessage,
            lambda *received: core.receive(*received),  # noqa: PLW0108 - the core is made below, with this endpoint
            lambda *received: core.malformed(*received),  # noqa: PLW0108
        )
        publisher: EventPublisher | None = None
        try:
            setup, events = starting.result(), config.engine.kv_events
            if events.kv_events_endpoint:
                publisher = EventPublisher(setup.scheduler, context, events, rank=config.index)
            around = Surroundings(
                on_alone=parent.set_blamed_on_request,
                publish=publisher.publish if publisher else _publish_nothing,
                keep=parent.keep,
                set_log_level=set_log_level,
                memory=memory,
            )
            core = compose(setup, endpoint, around)
            gc.freeze()
            parent.started(address)
            await _run(core, stop, parent, config.shutdown_timeout)
        finally:
            endpoint.close(CLOSE_LINGER)
            if publisher is not None:
                publisher.close()
        return 0
    finally:
        for task in (starting, stopping):
            task.cancel()
        await executor.close()
        socket.close(int(CLOSE_LINGER * 1000))
        if authenticator is not None:
            authenticator.stop()


def _publish_nothing() -> None:
    """Do nothing, in a core without a publisher."""


async def _run(core: EngineCore, stop: asyncio.Event, parent: ParentLink, shutdown_timeout: float) -> None:
    """Step until `stop` is set; then drain for `shutdown_timeout` seconds or until it is set again."""
    running = asyncio.ensure_future(core.run())
    beating = asyncio.ensure_future(_beat(core, parent))
    try:
        await _first(running, beating, stop.wait())
        if stop.is_set():
            stop.clear()
            parent.enter("draining")
            core.drain()
            await _first(running, beating, stop.wait(), seconds=shutdown_timeout)
        for task in (running, beating):
            if task.done():
                task.result()
        if not running.done():
            core.abandon("the engine was shut down before this request had finished")
    finally:
        running.cancel()
        await core.finish_transfers()
        beating.cancel()
        core.close()


async def _first(
    running: asyncio.Future[None],
    beating: asyncio.Future[None],
    stopping: Coroutine[Any, Any, Any],
    seconds: float | None = None,
) -> None:
    stopped = asyncio.ensure_future(stopping)
    await asyncio.wait({running, beating, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _beat(core: EngineCore, parent: ParentLink) -> None:
    preemptions = BurstLogger("the KV cache is too small for all requests: sequences are swapped out or recomputed")
    while True:
        core.beat()
        preemptions.look(core.stats()["num_preemptions"])
        parent.step = core.last_step
        parent.pulse()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
