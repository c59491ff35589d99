"""The process of the shared state: one for a server with several API processes. Knows no other process's address."""

import asyncio
import signal
from multiprocessing.connection import Connection

import uvloop
import zmq

from pyllm import log
from pyllm.config.process_config import StateConfig
from pyllm.frontend.shared.messages import MemberMessage
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.shared.state_server import StateServer
from pyllm.supervision.memory_pressure import MemoryPressure
from pyllm.supervision.parent_link import ParentLink, attach
from pyllm.wire import ipc
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.supervision_messages import Kept

TITLE = "pyllm::state"


def main(config: StateConfig, connection: Connection) -> int:
    """Answer API processes until SIGTERM or SIGINT, and give the exit code."""
    parent = attach(connection, TITLE)
    log.configure_child(TITLE, config.log)
    return parent.run(lambda: uvloop.run(_serve(config, parent)))


async def _serve(config: StateConfig, parent: ParentLink) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = ipc.bind(context, zmq.ROUTER, config.bind)
    state = SharedState(config.shared, on_cores=lambda cores: parent.keep(Kept(cores=cores)))
    pressure = MemoryPressure([state.resize])
    server = StateServer(
        state,
        lambda on_message, on_malformed: ipc.Endpoint(socket, MemberMessage, on_message, on_malformed),
    )
    parent.started(config.bind)
    while not stopped.is_set():
        parent.pulse()
        try:
            async with asyncio.timeout(HEARTBEAT_INTERVAL):
                await stopped.wait()
        except TimeoutError:
            server.beat()
            pressure.look()
    server.close()
    context.term()
    return 0
