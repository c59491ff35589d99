"""An API process: tokenizer, engine client and HTTP server on a socket that its parent bound. Knows no other process.

The heavy imports are inside the functions, so that the parent hears of this process before they begin.
"""

import asyncio
import gc
import logging
import socket
from multiprocessing.connection import Connection

import uvloop

from pyllm import log
from pyllm.api_keys import KeyRing
from pyllm.child import Child, attach
from pyllm.config import ApiConfig

# A stream makes few cycles; collecting seldom, and never what was made at start, halves the longest pause.
GC_THRESHOLDS = (50_000, 20, 20)


def main(config: ApiConfig, connection: Connection, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT, let running requests finish, and give the exit code.

    `connection` leads to the parent: stages, heartbeats and the word that the server is ready go up, and its end ends
    this process. `listener` is bound.
    """
    title = f"pyllm::api-{config.index}"
    child = attach(connection, title)
    log.configure(title)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return child.run(lambda: uvloop.run(_serve(config, listener, child)))


async def _serve(config: ApiConfig, listener: socket.socket, child: Child) -> int:
    child.enter("importing the frontend")
    from pyllm.frontend.chat_template import ChatTemplate
    from pyllm.frontend.client import EngineClient
    from pyllm.frontend.conversation import ConversationSettings
    from pyllm.frontend.http_server import HttpServer
    from pyllm.frontend.responses.store import LocalResponseStore, ResponseStore
    from pyllm.frontend.server_state import ServerState
    from pyllm.frontend.shared.local import LocalState
    from pyllm.frontend.shared.state import SharedState
    from pyllm.frontend.tokenizer import Tokenizer
    from pyllm.frontend.tracing import Tracer

    child.enter("loading the tokenizer")
    files = config.checkpoint.tokenizer
    tokenizer = Tokenizer(files)
    chat_template = ChatTemplate.of(files)
    child.enter("waiting for the core")
    client = await EngineClient.connect(config.core_address, timeout=config.server.ready_timeout)
    settings = ConversationSettings(
        tool_call_parser=config.server.tool_call_parser,
        reasoning_parser=config.server.reasoning_parser,
        trust_request_chat_template=config.server.trust_request_chat_template,
    )
    shared = LocalState(SharedState(config.shared))
    endpoint = config.server.otlp_traces_endpoint
    tracer = Tracer.to_collector(endpoint, config.served_model_name) if endpoint else None
    limit = config.server.max_stored_responses
    responses = LocalResponseStore(ResponseStore(limit)) if limit else None
    state = ServerState(
        client,
        tokenizer,
        chat_template,
        config.served_model_name,
        settings,
        server=config.server,
        keys=KeyRing(config.api_keys),
        shared=shared,
        tracer=tracer,
        responses=responses,
    )
    child.enter("opening the server")
    server = HttpServer(state, config.server.shutdown_timeout, child.started)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    dying = asyncio.ensure_future(client.death())
    try:
        await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done() and not serving.done():
            server.stop()  # The streams have ended with this error; the parent must hear of it, too.
            await serving
            raise dying.result()
        serving.result()
    finally:
        dying.cancel()
        client.close()
        if tracer is not None:
            tracer.close()
    return 0
