"""vllm-router in front of two servers: it passes requests on, balances, follows a client that leaves, fails over.

With `kv_aware` it finds the server that has a prompt by the events of both.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from checks import Servers, check, wait_until
from routed import check_router, free_port, is_healthy, post

ROUTER = str(Path(sys.executable).with_name("vllm-router"))
NAME, SEED = "smol", "7"
STORY = "The quick brown fox jumps over the lazy dog near the bank of river number {}. " * 12


def command(port: int, other: int, workers: list[str]) -> list[str]:
    """Its command line."""
    flags = ["--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
    return [ROUTER, *flags, "--worker-urls", *workers]


def complete(address: str, number: int) -> int:
    """How many tokens of a story of 200 were cached."""
    body: dict[str, Any] = {"model": NAME, "prompt": STORY.format(*[number] * 12), "max_tokens": 1}
    usage = post(address, "/v1/completions", body)["usage"]
    assert usage["prompt_tokens"] > 200, usage
    return int((usage["prompt_tokens_details"] or {})["cached_tokens"])


@check
def kv_aware(servers: Servers) -> None:
    """A prompt that one server has computed without the router goes to that server."""
    ports = [free_port() for _ in range(8)]
    python = servers.start_scripted[0]
    addresses, sources = [], []
    with ExitStack() as stack:
        for port, events, replays in (ports[:3], ports[3:6]):
            addresses.append(f"http://127.0.0.1:{port}")
            sources += ["--kv-event-source", f"{addresses[-1]}=tcp://127.0.0.1:{events}"]
            sources += ["--kv-event-replay-source", f"{addresses[-1]}=tcp://127.0.0.1:{replays}"]
            flags = ["--port", str(port), "--kv-cache-memory-bytes", "64MiB", "--served-model-name", NAME]
            flags += ["--enable-kv-cache-events", "--kv-events-endpoint", f"tcp://127.0.0.1:{events}"]
            flags += ["--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replays}"]
            flags += ["--prefix-hash", "sha256_cbor", "--prefix-hash-seed", SEED]
            environment = {**os.environ, "PYTHONPATH": servers.python_path}
            server = subprocess.Popen([python, "-m", "pyllm", "serve", *flags], env=environment)
            stack.callback(server.wait)
            stack.callback(server.terminate)
        for address in addresses:
            wait_until(lambda address=address: is_healthy(address), f"{address} to be healthy")
        flags = ["--policy", "kv_aware", *sources, "--kv-event-model", NAME]
        line = [*command(ports[6], ports[7], addresses), *flags]
        router = subprocess.Popen(line, env={**os.environ, "PYTHONHASHSEED": SEED})
        stack.callback(router.wait)
        stack.callback(router.kill)
        routed = f"http://127.0.0.1:{ports[6]}"
        wait_until(lambda: is_healthy(routed), "the router to be healthy")
        for number in range(4):
            assert complete(addresses[number % 2], number) < 50
        assert [complete(routed, number) > 150 for number in range(4)] == [True] * 4


check_router(command)
