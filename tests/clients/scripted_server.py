"""`python -m tests.clients.scripted_server --script FILE`: the scripted model behind pyllm's own HTTP server.

Its first line says where it is. SIGTERM ends it.
"""

import argparse
import asyncio
import socket
from pathlib import Path

from pyllm.frontend.app import create_app
from pyllm.frontend.http_server import HttpServer
from pyllm.frontend.text.templates import ChatTemplate
from tests.clients.recorder import Recorder
from tests.clients.script import Script
from tests.clients.scripted_model import NAME, scripted_state


async def serve(script: Script, name: str, port: int, record: Path | None, template: ChatTemplate | None) -> None:
    """Until a signal; prints the address once it takes requests."""
    state = await scripted_state(script, name, template)
    with socket.create_server(("127.0.0.1", port)) as listener:
        host, bound = listener.getsockname()
        server = HttpServer(create_app(state), state, 0.0, lambda: print(f"http://{host}:{bound}", flush=True))
        if record is not None:
            server.config.app = Recorder(server.config.app, record)
        await server.serve(sockets=[listener])
    state.client.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.scripted_server", description=__doc__)
    parser.add_argument("--script", type=Path, help="JSON file of turns; without it every prompt gets one text")
    parser.add_argument("--name", default=NAME, help="the model's name")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, help="file to which each request is written, as a line of JSON")
    parser.add_argument("--template", type=Path, help="chat template of another model")
    arguments = parser.parse_args()
    script = Script.read(arguments.script) if arguments.script else Script()
    template = ChatTemplate(arguments.template.read_text(), "<s>", "</s>") if arguments.template else None
    asyncio.run(serve(script, arguments.name, arguments.port, arguments.record, template))


if __name__ == "__main__":
    main()
