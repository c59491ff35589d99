"""An API process: tokenizer, engine client and HTTP server on a socket that its parent bound. Knows no other process.

The heavy imports are inside the functions, so that the parent hears of this process before they begin.
"""

import gc
import logging
import socket
from multiprocessing.connection import Connection

import uvloop

from pyllm import log
from pyllm.child import Child, attach
from pyllm.config import ApiConfig
from pyllm.errors import PyllmError

# A stream makes few cycles; collecting seldom, and never what was made at start, halves the longest pause.
GC_THRESHOLDS = (50_000, 20, 20)

logger = logging.getLogger(__name__)


def main(config: ApiConfig, connection: Connection, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT, let running requests finish, and give the exit code.

    `connection` leads to the parent: stages, heartbeats and the word that the server is ready go up, and its end ends
    this process. `listener` is bound.
    """
    title = f"pyllm::api-{config.index}"
    child = attach(connection, title)
    log.configure(title)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        uvloop.run(_serve(config, listener, child))
    except PyllmError as error:
        child.failed(str(error))
        logger.error("%s", error)
        return 1
    return 0


async def _serve(config: ApiConfig, listener: socket.socket, child: Child) -> None:
    child.enter("importing the frontend")
    from pyllm.frontend.chat_template import ChatTemplate
    from pyllm.frontend.client import EngineClient
    from pyllm.frontend.http_server import HttpServer
    from pyllm.frontend.server_state import ServerState
    from pyllm.frontend.tokenizer import Tokenizer

    child.enter("loading the tokenizer")
    files = config.checkpoint.tokenizer
    tokenizer = Tokenizer(files)
    chat_template = ChatTemplate.of(files)
    child.enter("waiting for the core")
    client = await EngineClient.connect(config.core_address, timeout=config.server.ready_timeout)
    state = ServerState(client, tokenizer, chat_template, config.served_model_name)
    child.enter("opening the server")
    server = HttpServer(state, config.server.shutdown_timeout, child.started)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await server.serve(sockets=[listener])
    finally:
        client.close()
