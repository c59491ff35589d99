"""`pyllm ps`: the models that a server has loaded."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from pyllm.checkpoint.hub import size_text
from pyllm.commands.models import print_table
from pyllm.commands.source_arguments import LOCAL_SERVER
from pyllm.errors import PyllmError
from pyllm.flags.trust_flags import add_trust_flags, trust_of
from pyllm.wire.server_address import server_address, server_key

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_SHORT_DIGEST = 12


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command that asks a server."""
    text = f"the server's address (default: {LOCAL_SERVER}); Ollama's own port is 11434"
    parser.add_argument("--url", metavar="URL", default=LOCAL_SERVER, help=text)
    text = "its key (default: OPENAI_API_KEY of the environment)"
    parser.add_argument("--api-key", dest="server_key", metavar="KEY", help=text)
    add_trust_flags(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_server_arguments(parser)
    parser.epilog = "example:\n  pyllm ps --url http://127.0.0.1:11434"


def run(options: argparse.Namespace) -> int:
    """Print the models.

    Raises:
        PyllmError: there is no server, or it fails.
    """
    models = ask_server(options, "GET", "/api/ps")["models"]
    rows = [
        (
            model["name"],
            model["digest"][:_SHORT_DIGEST],
            size_text(model["size"]),
            str(model["context_length"]),
            model["details"]["quantization_level"],
        )
        for model in models
    ]
    print_table([("NAME", "ID", "SIZE", "CONTEXT", "FORMAT"), *rows])
    return 0


def ask_server(options: argparse.Namespace, method: str, path: str, body: object = None) -> dict[str, Any]:
    """The answer of a server's route, which is one JSON object.

    Raises:
        UnreachableError: no server accepts a connection.
        RequestError: the server refuses the request, or its key.
        PyllmError: the server failed, or answers something else.
    """
    from pyllm.wire.server_client import SHORT_TIMEOUT, open_client

    address = server_address(options.url)
    client = open_client(address, server_key(options.server_key), trust_of(options), SHORT_TIMEOUT)
    return asyncio.run(_ask(client, method, path, body))


async def _ask(client: "AsyncClient", method: str, path: str, body: object) -> dict[str, Any]:
    import httpx2

    from pyllm.wire.server_client import check_status, unreachable

    async with client:
        try:
            response = await client.request(method, path, json=body)
            await check_status(response)
            return msgspec.json.decode(response.content, type=dict[str, Any])
        except httpx2.TransportError as error:
            raise unreachable(client.base_url, error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = f"{client.base_url}{path} does not answer with JSON: it is no server with Ollama's API"
            raise PyllmError(text) from None
