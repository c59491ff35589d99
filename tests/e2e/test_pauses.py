"""Deaths of processes that a running stream shows as a pause, all of one server; it goes on, and leaves nothing."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.server import DEADLINE, Server, until
from tests.e2e.streaming import accepts, ended_whole, streaming
from tests.e2e.titles import API, CORE, FORK_SERVER, WORKER, find
from tests.tiers import full
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pauses") / "log"


@pytest.fixture(scope="module")
def shared(log: Path) -> Iterator[Server]:
    """A server that may replace any number of processes."""
    with log.open("w") as file:
        with Server("--max-restarts", "100", log_file=file) as server:
            yield server
        assert server.process.returncode == 0
        assert server.orphans() == []


@pytest.fixture
def server(shared: Server) -> Server:
    """The server, once each of its processes is there; those of earlier tests must be gone in the end, too."""
    return whole(shared, API, CORE, WORKER)


def whole(server: Server, *titles: str) -> Server:
    until(lambda: all(len(find(server.process.pid, title)) == 1 for title in titles), "all processes to be there")
    server.tree += server.processes()
    return server


@pytest.fixture(scope="module")
def shared_forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose workers are forks, as those of a transformers model are."""
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8000)
    with Server(model, "--model-impl", "transformers", "--max-restarts", "100") as server:
        yield server
        assert server.stop(signal.SIGTERM) == 0
        assert server.orphans() == []


@pytest.fixture
def forking(shared_forking: Server) -> Server:
    """The server with a fork server, once each of its processes is there."""
    return whole(shared_forking, API, CORE, FORK_SERVER, WORKER)


class Lines:
    """What the server has logged since the test began."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, len(path.read_bytes())

    def text(self) -> str:
        return self._path.read_bytes()[self._before :].decode()


@pytest.fixture
def lines(log: Path, server: Server) -> Lines:
    return Lines(log)


@pytest.mark.parametrize(
    "titles",
    [
        (WORKER,),
        (WORKER, CORE),
        full((CORE,)),
    ],
)
def test_dead_engine_processes_are_a_pause(server: Server, lines: Lines, titles: tuple[str, ...]) -> None:
    with streaming(server, max_tokens=200) as stream:
        for process in [server.titled(title) for title in titles]:
            process.kill()
    assert ended_whole(stream, 200)
    until(lambda: "was killed by SIGKILL" in lines.text(), "the death to be logged")


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.parametrize("titles", [(FORK_SERVER,), (FORK_SERVER, CORE)])
def test_a_dead_fork_server_is_a_pause(forking: Server, titles: tuple[str, ...]) -> None:
    with streaming(forking, max_tokens=1000) as stream:
        for process in [forking.titled(title) for title in titles]:
            process.kill()
    assert ended_whole(stream, 1000)


@pytest.mark.full
@pytest.mark.torch
def test_a_fork_server_that_dies_while_a_worker_starts_is_a_longer_pause(forking: Server) -> None:
    with streaming(forking, max_tokens=1000) as stream:
        old = forking.titled(WORKER)
        old.kill()
        until(lambda: any(process != old for process in find(forking.process.pid, WORKER)), "another worker")
        forking.titled(FORK_SERVER).kill()
    assert ended_whole(stream, 1000)


@pytest.mark.full
@pytest.mark.torch
def test_a_fork_server_that_stands_still_is_a_pause(forking: Server) -> None:
    with streaming(forking, max_tokens=1000) as stream:
        old = forking.titled(FORK_SERVER)
        old.suspend()
    assert ended_whole(stream, 1000)
    until(lambda: any(process != old for process in find(forking.process.pid, FORK_SERVER)), "another fork server")


def test_a_dead_core_takes_along_a_worker_that_stands_still(server: Server) -> None:
    with streaming(server, max_tokens=200) as stream:
        core, worker = server.titled(CORE), server.titled(WORKER)
        worker.suspend()
        core.kill()
    assert ended_whole(stream, 200)
    assert psutil.wait_procs([core, worker], timeout=10.0)[1] == []


def test_a_core_that_stands_still_is_a_pause(server: Server, lines: Lines) -> None:
    with streaming(server, max_tokens=400) as stream:
        server.titled(CORE).suspend()
    assert ended_whole(stream, 400)
    until(lambda: all(find(server.process.pid, each) for each in (CORE, WORKER)), "others to be there")
    death = re.compile("core 0 was killed by SIGKILL while ready.*: it gave no sign of life")  # It says at which step.
    until(lambda: bool(death.search(lines.text())), "the death to be logged")


def test_a_supervisor_that_stands_still_is_no_matter_and_blames_nobody(server: Server, lines: Lines) -> None:
    processes = server.processes()
    server.process.send_signal(signal.SIGSTOP)
    until(lambda: not accepts(server), "the supervisor to be missed")
    assert server.complete("The sea is", max_tokens=4).status_code == 200
    server.process.send_signal(signal.SIGCONT)
    until(lambda: accepts(server), "the supervisor to be heard")
    assert all(process.is_running() for process in processes)
    assert "another one takes its place" not in lines.text()


def test_a_dead_api_process_is_replaced(server: Server, lines: Lines) -> None:
    old = server.titled(API)
    old.kill()
    old.wait()
    # The listening socket is the supervisor's: who connects meanwhile waits for the new process.
    assert httpx.get(f"{server.address}/health/ready", timeout=DEADLINE).status_code == 200
    assert server.titled(API) != old
    assert "API process 0 was killed by SIGKILL" in lines.text()
