"""The process of the shared state: one for a server with several API processes. Knows no other process's address."""

import asyncio
import signal
from multiprocessing.connection import Connection

import uvloop
import zmq

from pyllm import ipc, log
from pyllm.child import HEARTBEAT_INTERVAL, Child, attach
from pyllm.frontend.memory_pressure import MemoryPressure
from pyllm.frontend.shared.messages import MemberMessage
from pyllm.frontend.shared.server import StateServer
from pyllm.frontend.shared.state import SharedState
from pyllm.process_config import StateConfig

TITLE = "pyllm::state"


def main(config: StateConfig, connection: Connection) -> int:
    """Answer API processes until SIGTERM or SIGINT, and give the exit code."""
    child = attach(connection, TITLE)
    log.configure(TITLE)
    return child.run(lambda: uvloop.run(_serve(config, child)))


async def _serve(config: StateConfig, child: Child) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = ipc.bind(context, zmq.ROUTER, config.bind)
    state = SharedState(config.shared)
    pressure = MemoryPressure([state.resize])
    server = StateServer(
        state,
        lambda on_message, on_malformed: ipc.Endpoint(socket, MemberMessage, on_message, on_malformed),
    )
    child.started(config.bind)
    while not stopped.is_set():
        child.pulse()
        try:
            async with asyncio.timeout(HEARTBEAT_INTERVAL):
                await stopped.wait()
        except TimeoutError:
            server.beat()
            pressure.look()
    server.close()
    context.term()
    return 0
