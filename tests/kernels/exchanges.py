"""Ranks in threads or processes of a test, over both transports."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import TypeVar

from pyllm_kernels._cpu import RankExchange

TIMEOUT = 60.0  # seconds: far more than any exchange takes

Result = TypeVar("Result")
Link = dict[int, list[tuple[int, int]]] | int
"""The sockets of a rank to the others, by rank; or the descriptor of a file in memory that all ranks share."""

# A rank that takes part in one collective, and then in no more.
RANK = """
import json, signal, sys
from pyllm_kernels._cpu import RankExchange
transport, link, place = json.loads(sys.argv[1])
link = link if isinstance(link, int) else [tuple(pair) for pair in link]
exchange = getattr(RankExchange, transport)(link, *place, 60.0)
exchange.broadcast(bytearray(8))
print("took part", flush=True)
signal.pause()
"""


@contextmanager
def linked(transport: str, size: int, num_stages: int = 1) -> Iterator[Link]:
    """The link of all ranks. Sockets are those of the ranks that take them."""
    if transport == "in_memory":
        memory = os.memfd_create("ranks")
        yield memory
        os.close(memory)
        return
    sockets: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(size * num_stages)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for first, second in combinations(range(size * num_stages), 2):
            if first // size == second // size or second - first == size:
                sockets[first].append((second, socket.create_connection(server.getsockname()).detach()))
                sockets[second].append((first, server.accept()[0].detach()))
    yield sockets


def join(
    transport: str, link: Link, rank: int, size: int, num_stages: int = 1, timeout: float = TIMEOUT
) -> RankExchange:
    if isinstance(link, int):
        return RankExchange.in_memory(link, rank, size, num_stages, timeout)
    return RankExchange.over_tcp(link[rank], rank, size, num_stages, timeout)


@contextmanager
def exchanges(transport: str, size: int, num_stages: int = 1, timeout: float = TIMEOUT) -> Iterator[list[RankExchange]]:
    """All ranks."""
    with linked(transport, size, num_stages) as link:
        yield [join(transport, link, rank, size, num_stages, timeout) for rank in range(size * num_stages)]


def together(calls: Sequence[Callable[[], Result]]) -> list[Result | Exception]:
    """Call each in a thread of its own; their results, or the exceptions that they raised."""

    def outcome(call: Callable[[], Result]) -> Result | Exception:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - it is the result
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def start_rank(transport: str, link: Link, rank: int, size: int) -> "subprocess.Popen[bytes]":
    """A rank in a process of its own: it takes part in a broadcast of 8 bytes, says so, and waits to be killed."""
    own = link if isinstance(link, int) else link[rank]
    descriptors = [own] if isinstance(own, int) else [descriptor for _, descriptor in own]
    arguments = json.dumps([transport, own, [rank, size, 1]])
    process = subprocess.Popen([sys.executable, "-c", RANK, arguments], pass_fds=descriptors, stdout=subprocess.PIPE)
    if not isinstance(link, int):
        for descriptor in descriptors:
            os.close(descriptor)
    return process
