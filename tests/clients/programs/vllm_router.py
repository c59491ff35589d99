"""vllm-router in front of two servers: it passes requests on, balances, follows a client that leaves, fails over.

A stream whose server is killed goes on at the other one. With `kv_aware` the router finds the server that has a prompt
by the events of both.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from checks import ModelServer, Servers, check, wait_until
from routed import check_router, free_port, is_healthy, post
from routed_streams import CHAT, COMPLETIONS, check_streams

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
    ports = [free_port() for _ in range(6)]
    workers, sources = [], []
    with ExitStack() as stack:
        for events, replays in (ports[:2], ports[2:4]):
            flags = ["--enable-kv-cache-events", "--kv-events-endpoint", f"tcp://127.0.0.1:{events}"]
            flags += ["--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replays}"]
            flags += ["--prefix-hash", "sha256_cbor", "--prefix-hash-seed", SEED]
            workers.append(ModelServer(servers, *flags))
            stack.callback(workers[-1].stop)
        for worker, events, replays in zip(workers, ports[:4:2], ports[1:4:2], strict=True):
            worker.wait()
            sources += ["--kv-event-source", f"{worker.address}=tcp://127.0.0.1:{events}"]
            sources += ["--kv-event-replay-source", f"{worker.address}=tcp://127.0.0.1:{replays}"]
        addresses = [worker.address for worker in workers]
        flags = ["--policy", "kv_aware", *sources, "--kv-event-model", NAME]
        line = [*command(ports[4], ports[5], addresses), *flags]
        router = subprocess.Popen(line, env={**os.environ, "PYTHONHASHSEED": SEED})
        stack.callback(router.wait)
        stack.callback(router.kill)
        routed = f"http://127.0.0.1:{ports[4]}"
        wait_until(lambda: is_healthy(routed), "the router to be healthy")
        for number in range(4):
            assert complete(addresses[number % 2], number) < 50
        assert [complete(routed, number) > 150 for number in range(4)] == [True] * 4


# It passes on the headers of two routes; the others' streams have no ids.
check_streams(command, passes_headers=lambda path: path in (CHAT, COMPLETIONS))
check_router(command)
