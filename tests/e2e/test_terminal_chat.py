"""`pyllm chat` and `pyllm complete` with a real server, whose API process dies, and with a real engine inside."""

import asyncio
import contextlib
import os
import subprocess
import sys

from pyllm.terminal_chat.answers import Fields
from pyllm.terminal_chat.server_source import ServerSource
from tests.e2e.server import Server

FRANCE = "The capital of France is"


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyllm", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYLLM_LOG_LEVEL"}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)


async def test_an_answer_goes_on_when_the_api_process_dies() -> None:
    with Server() as server:
        tries: list[float] = []

        async def pause(seconds: float) -> None:
            tries.append(seconds)
            await asyncio.sleep(seconds)

        fields: Fields = {"max_tokens": 200, "temperature": 1.0, "seed": 7}
        source = ServerSource(server.address, pause=pause)
        await source.start(for_chat=False)
        whole = await text_of(source, fields, None)
        assert tries == []
        assert await text_of(source, fields, server) == whole
        assert tries
        await source.close()
        done = run("complete", server.address, "--max-tokens", "4", "--temperature", "0", stdin=f"{FRANCE}\n")
        assert (done.stdout[:6], done.stderr, done.returncode) == (" Paris", "", 0)
        refused = run("complete", server.address, "--model-name", "third", stdin=FRANCE)
        assert (refused.stdout, refused.stderr.count("\n"), refused.returncode) == ("", 1, 2)
        settings = "/params temperature 0\n/params max_tokens 9\n"
        chat = run("chat", server.address, stdin=f"{settings}What is the capital of France?\n")
        assert chat.stdout.strip()
        assert (chat.stderr.splitlines()[0].endswith(f" at {server.address}"), chat.returncode) == (True, 0)


async def text_of(source: ServerSource, fields: Fields, killed: Server | None) -> str:
    """What follows the prompt; the API process of the server is killed when some of it has come."""
    text, count = "", 0
    async with contextlib.aclosing(source.answer("The sea is", fields)) as pieces:
        async for piece in pieces:
            text += piece.content
            count += 1
            if killed is not None and count == 10:
                killed.titled("pyllm::api-0").kill()
                killed.tree = killed.processes()
    return text


def test_an_engine_inside_prints_its_answer_alone() -> None:
    done = run("complete", FRANCE, "--max-tokens", "4", "--temperature", "0", "--stop", "\n", "--block-size", "16")
    assert (done.stdout, done.stderr, done.returncode) == (" Paris.", "", 0)
