"""What is left, and what the exit code says, after any process was killed or told to stop."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pyllm.supervision.step_trace import NUM_STEPS
from tests.e2e import faulty_processor
from tests.e2e.server import Server, until
from tests.e2e.streaming import accepts, ended_whole, streaming
from tests.e2e.titles import API, CORE, STATE, WORKER
from tests.tiers import full
from tests.tiny_model import write_tiny_model


def have_successors(server: Server, old: list[psutil.Process]) -> bool:
    """Whether others carry the titles of processes that have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        server.tree = server.processes()
        titles = {title: process for process in server.tree for title in process.cmdline()[:1]}
        return all(titles.get(title, process) != process for title, process in zip(TITLES, old, strict=True))
    return False


TITLES = (API, CORE, STATE)
ENDLESS = 8000  # tokens of a stream that still runs when a process dies


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that loads at once, and gives one token a step for as long as a test may want."""
    folder = tmp_path_factory.mktemp("endless")
    return write_tiny_model(folder, max_position_embeddings=2 * ENDLESS), "--num-speculative-tokens", "0"


@pytest.mark.parametrize("number", [signal.SIGKILL, full(signal.SIGSTOP)])
def test_processes_that_die_or_stand_still_together_are_replaced(tiny: tuple[str, ...], number: signal.Signals) -> None:
    with Server(*tiny, "--api-server-count", "2") as server:
        tree = server.tree
        old = [server.titled(title) for title in TITLES]
        for process in old:
            process.send_signal(number)
        until(lambda: have_successors(server, old), "all to be replaced")
        assert server.complete("The sea is", max_tokens=4, ignore_eos=True).json()["usage"]["completion_tokens"] == 4
        assert server.stop(signal.SIGTERM) == 0
        for name in ("API process 0", "core 0", "the shared state"):
            assert f"{name} was killed by SIGKILL" in server.log
        assert ("gave no sign of life" in server.log) == (number == signal.SIGSTOP)
        assert server.orphans() == []
        server.tree = tree
        assert server.orphans() == []


@pytest.mark.full
def test_dead_processes_are_a_pause_where_a_sandbox_refuses_pidfds() -> None:
    command = (sys.executable, "-m", "tests.without_pidfd", sys.executable, "-m", "pyllm", "serve")
    with Server(command=command) as server:
        with streaming(server, max_tokens=200) as stream:
            server.titled(WORKER).kill()
        assert ended_whole(stream, 200)
        with streaming(server, max_tokens=200) as stream:
            server.titled(CORE).kill()
        assert ended_whole(stream, 200)
        assert server.stop(signal.SIGTERM) == 0
        for name in ("worker 0 of core 0", "core 0"):
            assert f"{name} was killed by SIGKILL" in server.log
        assert server.orphans() == []


def test_the_record_of_a_dead_core_has_its_last_steps_and_who_was_in_flight(tmp_path: Path) -> None:
    with Server("--flight-recorder-dir", str(tmp_path)) as server:
        with contextlib.ExitStack() as running:
            streams = [running.enter_context(streaming(server, max_tokens=200)) for _ in range(3)]
            server.titled(CORE).kill()
        assert all(ended_whole(stream, 200) for stream in streams)
    (path,) = tmp_path.glob("*-core-0-*/report.json")
    report = json.loads(path.read_bytes())
    assert report["death"].startswith("core 0 was killed by SIGKILL while ready")
    suspects, in_flight, steps = report["suspects"], report["steps_in_flight"], report["steps"]
    assert len({(suspect["client"], suspect["request"]) for suspect in suspects}) == len(suspects) == len(streams)
    assert 0 < len(steps) <= NUM_STEPS
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + len(steps)))
    assert 1 <= len(in_flight) <= 2  # planning a step ahead
    assert in_flight == [step["step"] for step in steps[-len(in_flight) :]]
    assert steps[-1]["num_rows"] == steps[-1]["num_tokens"] == len(streams)
    assert all(request in suspects for request in steps[-1]["requests"])


@pytest.mark.parametrize("title", [CORE, full(API)])
def test_a_process_that_dies_too_often_ends_the_server_with_1_and_the_reason_last(
    tiny: tuple[str, ...], title: str
) -> None:
    with Server(*tiny, "--max-restarts", "0") as server:
        with streaming(server, max_tokens=ENDLESS) as stream:
            server.titled(title).kill()
        if title == CORE:
            assert "max_restarts allows 0" in json.loads(stream.events[-2])["error"]["message"]
        assert server.wait() == 1
        last = server.log.splitlines()[-1]
        assert last.startswith("pyllm: ")
        assert "was killed by SIGKILL while ready; it is not started anew, max_restarts allows 0 times" in last
        assert server.orphans() == []


def test_killed_supervisor_leaves_no_orphan_though_all_stand_still(tiny: tuple[str, ...]) -> None:
    with Server(*tiny) as server:
        for process in server.tree[1:]:
            if process.cmdline()[0].startswith("pyllm::"):
                process.suspend()
        server.process.kill()
        assert server.wait() == -signal.SIGKILL
        assert server.orphans() == []


@pytest.mark.parametrize("number", [signal.SIGINT, full(signal.SIGTERM)])
def test_signal_drains_running_streams_and_exits_0(number: signal.Signals) -> None:
    with Server() as server:
        with streaming(server, max_tokens=60) as stream:
            server.process.send_signal(number)
        assert ended_whole(stream, 60)
        assert server.wait() == 0
        assert server.orphans() == []


def test_a_signal_to_all_processes_drains_as_one_to_the_supervisor_does() -> None:
    with Server("--shutdown-timeout", "80") as server:
        with streaming(server, max_tokens=200) as stream:
            for process in server.tree:
                process.terminate()
        assert ended_whole(stream, 200)
        assert server.wait() == 0
        assert server.orphans() == []


def test_core_that_dies_while_draining_is_a_pause() -> None:
    with Server("--shutdown-timeout", "80") as server:
        with streaming(server, max_tokens=200) as stream:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(server), "the server to stop accepting")
            server.titled("pyllm::core-0").kill()
        assert ended_whole(stream, 200)
        assert server.wait() == 0
        assert server.orphans() == []


def test_drain_is_bounded_by_its_timeout(tiny: tuple[str, ...]) -> None:
    with Server(*tiny, "--shutdown-timeout", "0.5") as server:
        with streaming(server, max_tokens=ENDLESS):
            server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.orphans() == []


def test_second_signal_ends_the_drain(tiny: tuple[str, ...]) -> None:
    with Server(*tiny, "--shutdown-timeout", "600") as server:
        with streaming(server, max_tokens=ENDLESS) as stream:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(server), "the server to stop accepting")
            server.process.send_signal(signal.SIGTERM)
        assert stream.broken
        server.wait()
        assert server.orphans() == []


def test_signal_while_loading_ends_quietly() -> None:
    server = Server()
    assert server.process.stderr is not None
    while "pyllm::core-0" not in server.process.stderr.readline():  # a process of the server has begun
        pass
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.log


def test_missed_ready_deadline_names_the_stage() -> None:
    server = Server("--ready-timeout", "0.05")
    assert server.wait() == 1
    assert "was not ready after 0.05 s: it was still" in server.log


def test_application_killed_with_an_engine_inside_leaves_no_orphan(model: str) -> None:
    code = """
import signal
import sys
from pyllm import LLM
llm = LLM(sys.argv[1], max_num_seqs=4)
print("ready", flush=True)
signal.pause()
"""
    application = subprocess.Popen([sys.executable, "-c", code, model], stdout=subprocess.PIPE, text=True)
    assert application.stdout is not None
    assert application.stdout.readline() == "ready\n"
    children = psutil.Process(application.pid).children(recursive=True)
    assert len(children) >= 2
    for child in children:
        if child.cmdline()[0].startswith("pyllm::"):
            child.suspend()
    os.kill(application.pid, signal.SIGKILL)
    application.communicate()
    assert psutil.wait_procs(children, timeout=10.0)[1] == []


def test_requests_that_kill_their_core_fail_alone_and_cost_no_restarts(tiny: tuple[str, ...], tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    environment = faulty_processor.install(tmp_path / "packages")
    options = ("--distributed-executor-backend", "uni", "--max-restarts", "2")
    with Server(*tiny, *options, environment=environment, warm_spares=True) as server:
        with streaming(server, max_tokens=1000) as twin:
            pass
        killers = {"vllm_xargs": {faulty_processor.NAME: {"flag": str(flag)}}}
        with contextlib.ExitStack() as running:
            streams = [running.enter_context(streaming(server, ENDLESS, **killers)) for _ in range(2)]
            innocent = running.enter_context(streaming(server, max_tokens=1000))
            flag.write_text("kill")
        for stream in streams:
            message = json.loads(stream.events[-2])["error"]["message"]
            assert message.startswith("this request ended the engine core that computed it ")
            assert " times, the last 2 alone: " in message
        assert ended_whole(innocent, 1000)
        assert innocent.text() == twin.text()
        assert server.stop(signal.SIGTERM) == 0
        assert server.log.count("core 0 was killed by SIGKILL") == 2 + 2 * 2
