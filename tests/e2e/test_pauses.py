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
    titles = (API, CORE, FORK_SERVER, WORKER)
    until(lambda: all(len(find(shared.process.pid, title)) == 1 for title in titles), "all processes to be there")
    shared.tree += shared.processes()
    return shared


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
        (FORK_SERVER, CORE),
        full((CORE,)),
        full((FORK_SERVER,)),
    ],
)
def test_dead_engine_processes_are_a_pause(server: Server, lines: Lines, titles: tuple[str, ...]) -> None:
    with streaming(server, max_tokens=200) as stream:
        for process in [server.titled(title) for title in titles]:
            process.kill()
    assert ended_whole(stream, 200)
    until(lambda: "was killed by SIGKILL" in lines.text(), "the death to be logged")


@pytest.mark.full
def test_a_fork_server_that_dies_while_a_worker_starts_is_a_longer_pause(server: Server) -> None:
    with streaming(server, max_tokens=200) as stream:
        old = server.titled(WORKER)
        old.kill()
        until(lambda: any(process != old for process in find(server.process.pid, WORKER)), "another worker")
        server.titled(FORK_SERVER).kill()
    assert ended_whole(stream, 200)


def test_a_dead_core_takes_along_a_worker_that_stands_still(server: Server) -> None:
    with streaming(server, max_tokens=200) as stream:
        core, worker = server.titled(CORE), server.titled(WORKER)
        worker.suspend()
        core.kill()
    assert ended_whole(stream, 200)
    assert psutil.wait_procs([core, worker], timeout=10.0)[1] == []


@pytest.mark.parametrize(("title", "name"), [(CORE, "core 0"), full(FORK_SERVER, "the fork server")])
def test_what_stands_still_is_a_pause(server: Server, lines: Lines, title: str, name: str) -> None:
    with streaming(server, max_tokens=400) as stream:
        server.titled(title).suspend()
    assert ended_whole(stream, 400)
    until(lambda: all(find(server.process.pid, each) for each in (title, WORKER)), "others to be there")
    death = re.compile(f"{name} was killed by SIGKILL while ready.*: it gave no sign of life")  # Of a core, at a step.
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
