"""What is left, and what the exit code says, after any process was killed or told to stop."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.e2e.server import DEADLINE, Server, until


@contextmanager
def streaming(server: Server, max_tokens: int) -> Iterator["Stream"]:
    """A request that streams in a thread of its own; its first token has come when the block begins."""
    stream = Stream(server, max_tokens)
    stream.thread.start()
    assert stream.first.wait(DEADLINE)
    yield stream
    stream.thread.join(DEADLINE)
    assert not stream.thread.is_alive()


class Stream:
    def __init__(self, server: Server, max_tokens: int) -> None:
        self.events: list[str] = []
        self.broken = False  # whether it ended without an end
        self.first = threading.Event()
        self.thread = threading.Thread(target=self._read)
        self._url = f"{server.address}/v1/completions"
        self._body = {
            "model": server.model(),
            "prompt": "Once upon a time",
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "stream": True,
        }

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=DEADLINE) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.first.set()
        except httpx.RemoteProtocolError:
            self.broken = True


@pytest.mark.parametrize("title", ["pyllm::worker-0-0", "pyllm::core-0"])
def test_dead_engine_process_ends_streams_with_an_error_and_the_server_with_1(title: str) -> None:
    with Server() as server:
        with streaming(server, max_tokens=5000) as stream:
            server.titled(title).kill()
        assert stream.events[-1] == "[DONE]"
        error = json.loads(stream.events[-2])["error"]
        assert error["type"] == "server_error"
        assert "engine" in error["message"] or "worker" in error["message"]
        assert server.wait() == 1
        assert "SIGKILL" in server.log
        assert server.orphans() == []


def test_core_that_stands_still_ends_streams_with_an_error_and_the_server_with_1() -> None:
    with Server() as server:
        with streaming(server, max_tokens=5000) as stream:
            server.titled("pyllm::core-0").send_signal(signal.SIGSTOP)
        assert "no sign of life" in json.loads(stream.events[-2])["error"]["message"]
        assert server.wait() == 1
        assert "no sign of life" in server.log
        assert server.orphans() == []


def test_dead_api_process_is_replaced() -> None:
    with Server() as server:
        old = server.titled("pyllm::api-0")
        old.kill()
        old.wait()
        # The listening socket is the supervisor's: who connects meanwhile waits for the new process.
        assert httpx.get(f"{server.address}/health/ready", timeout=DEADLINE).status_code == 200
        server.tree = server.processes()
        assert server.titled("pyllm::api-0") != old
        assert server.stop(signal.SIGTERM) == 0
        assert "API process 0 was killed by SIGKILL" in server.log
        assert server.orphans() == []


def test_api_processes_that_die_too_often_end_the_server_with_1() -> None:
    with Server() as server:
        while server.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):  # There is none, just now.
                server.tree = server.processes()
                victim = server.titled("pyllm::api-0")
                victim.kill()
                victim.wait()
        assert server.wait() == 1
        assert server.orphans() == []


def test_killed_supervisor_leaves_no_orphan() -> None:
    with Server() as server:
        server.process.kill()
        assert server.wait() == -signal.SIGKILL
        assert server.orphans() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_running_streams_and_exits_0(number: signal.Signals) -> None:
    with Server() as server:
        with streaming(server, max_tokens=60) as stream:
            server.process.send_signal(number)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-3])["choices"][0]["finish_reason"] == "length"
        assert json.loads(stream.events[-2])["usage"]["completion_tokens"] == 60
        assert server.wait() == 0
        assert server.orphans() == []


def test_drain_is_bounded_by_its_timeout() -> None:
    with Server("--shutdown-timeout", "0.5") as server:
        with streaming(server, max_tokens=5000):
            server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.orphans() == []


def test_second_signal_ends_the_drain() -> None:
    with Server("--shutdown-timeout", "600") as server:
        with streaming(server, max_tokens=5000) as stream:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(server), "the server to stop accepting")
            server.process.send_signal(signal.SIGTERM)
        assert stream.broken
        server.wait()
        assert server.orphans() == []


def accepts(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health", timeout=DEADLINE).status_code == 200
    except httpx.TransportError:
        return False


def test_signal_while_loading_ends_quietly() -> None:
    server = Server()
    assert server.process.stderr is not None
    server.process.stderr.readline()  # something has begun
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.log


def test_missed_ready_deadline_names_the_stage() -> None:
    server = Server("--ready-timeout", "0.4")
    assert server.wait() == 1
    assert "was not ready after 0.4 s: it was still" in server.log


def test_application_killed_with_an_engine_inside_leaves_no_orphan() -> None:
    code = """
import signal
from pyllm import LLM
llm = LLM(max_num_seqs=4)
print("ready", flush=True)
signal.pause()
"""
    application = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert application.stdout is not None
    assert application.stdout.readline() == "ready\n"
    children = psutil.Process(application.pid).children(recursive=True)
    assert len(children) >= 2
    os.kill(application.pid, signal.SIGKILL)
    application.communicate()
    assert psutil.wait_procs(children, timeout=10.0)[1] == []
