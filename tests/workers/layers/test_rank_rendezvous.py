"""Ranks meet, whoever comes first, and nobody else is let in."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from pyllm_kernels._cpu import RankExchange

from pyllm.errors import ConfigError
from pyllm.workers.layers.rank_rendezvous import Place, meet

SECRET = b"of this start"
TRANSPORTS = ("file", "tcp")
# Rank 1, which ends as soon as rank 0 has answered it.
DIES = """
import pathlib, socket, sys
while not pathlib.Path(sys.argv[1]).is_socket():
    pass
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.recv(1)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, as those of pytest need not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def rendezvous(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "file":
        return f"file://{folder}/ranks"
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def start(pool: ThreadPoolExecutor, rendezvous: str, *places: Place) -> list[Future[RankExchange]]:
    return [pool.submit(meet, place, rendezvous, "", SECRET, 60.0) for place in places]


def ranks_of(exchange: RankExchange, place: Place) -> list[int]:
    """The ranks of a stage, as each of them says."""
    found = np.zeros(place.size, np.uint8)
    exchange.all_gather(np.full(1, place.rank, np.uint8), found)
    return found.tolist()


@pytest.mark.parametrize("rendezvous", TRANSPORTS, indirect=True)
@pytest.mark.parametrize("last", [0, 1, 3])
@pytest.mark.parametrize(("size", "num_stages"), [(4, 1), (2, 2)])
def test_all_ranks_meet_whichever_comes_last(
    rendezvous: str, folder: Path, pool: ThreadPoolExecutor, last: int, size: int, num_stages: int
) -> None:
    places = [Place(rank, size, num_stages) for rank in range(4)]
    early = start(pool, rendezvous, *(place for place in places if place.rank != last))
    if last == 0 or rendezvous.startswith("file"):
        assert not any(each.done() for each in early)
    ranks = {place.rank: each for place, each in zip((p for p in places if p.rank != last), early, strict=True)}
    ranks[last] = start(pool, rendezvous, places[last])[0]
    exchanges = [ranks[rank].result() for rank in range(4)]
    found = list(pool.map(ranks_of, exchanges, places))
    assert found == ([[0, 1, 2, 3]] * 4 if num_stages == 1 else [[0, 1]] * 2 + [[2, 3]] * 2)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("rendezvous", ["tcp"], indirect=True)
def test_others_are_not_let_in(rendezvous: str, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Place(0, 2), Place(1, 2)
    (waiting_rank,) = start(pool, rendezvous, first)
    address = rendezvous.removeprefix("tcp://").split(":")
    stranger = pool.submit(meet, second, rendezvous, "", b"of another start", 60.0)
    with pytest.raises(ConnectionError):  # the rank with another secret is refused
        stranger.result()
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x03\0\0\0abc", b""):
        with socket.create_connection((address[0], int(address[1]))) as connection:
            connection.sendall(data)
            with suppress(OSError):  # It closes before it has read everything.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 10):
                    pass
    assert not waiting_rank.done()
    (own,) = start(pool, rendezvous, second)
    assert list(pool.map(ranks_of, [waiting_rank.result(), own.result()], [first, second])) == [[0, 1]] * 2
    refusals = [record.message for record in caplog.records if record.name.endswith("rank_rendezvous")]
    assert refusals[0] == "closed a connection to this rank: it does not know the secret of this start"
    assert len(refusals) == 4


def test_a_rank_that_ends_while_they_meet_is_an_error_of_the_others(folder: Path, pool: ThreadPoolExecutor) -> None:
    rendezvous = f"file://{folder}/ranks"
    others = start(pool, rendezvous, Place(0, 3), Place(2, 3))
    subprocess.run([sys.executable, "-c", DIES, str(folder / "ranks")], check=True)
    for other in others:
        with pytest.raises(ConnectionError, match="a rank ended while the ranks met"):
            other.result()


@pytest.mark.parametrize("rendezvous", TRANSPORTS, indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_wait_for_the_others_is_bounded(rendezvous: str, folder: Path, rank: int) -> None:
    with pytest.raises(TimeoutError):
        meet(Place(rank, 2), rendezvous, timeout=0.02)
    assert list(folder.iterdir()) == []


def test_an_address_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"ranks cannot listen on 203\.0\.113\.9:80: .*; give this machine an address"
    ):
        meet(Place(0, 2), "tcp://203.0.113.9:80")


def test_peers_are_those_of_the_stage_and_its_neighbours() -> None:
    assert [Place(rank, 2, 3).peers() for rank in range(6)] == [[1, 2], [0, 3], [0, 3, 4], [1, 2, 5], [2, 5], [3, 4]]
    assert Place(0, 1).peers() == []
