"""`pyllm serve --data-parallel-size 2`: several cores behind one address, of which one may die, come or leave."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from pyllm import LLM, SamplingParams
from pyllm.core.replay import replay_file
from pyllm.frontend.observability.metrics_snapshot import Counter
from tests.e2e.kills import Tally, kill_at_events, twins_of
from tests.e2e.server import DEADLINE, Server, until
from tests.e2e.survival_streams import STREAMED, Request
from tests.e2e.titles import CORE, find

TINY = ("--device", "cpu", "--kv-cache-memory-bytes", "8MiB")
IN_TURN = ("--data-parallel-size", "2", "--data-parallel-placement", "round-robin")


def requests(number: int, max_tokens: int) -> list[Request]:
    """Greedy and seeded ones by turns, of prompts that differ."""
    return [
        Request(
            f"stream {index}",
            "/v1/completions",
            {
                "prompt": f"The {index}. sea is",
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "temperature": index % 2,
                "seed": index,
                **STREAMED,
            },
        )
        for index in range(number)
    ]


def figures(server: Server, name: str) -> dict[str, float]:
    """A metric of each core."""
    lines = httpx.get(f"{server.address}/metrics", timeout=DEADLINE).text.splitlines()
    found = (re.match(rf'{name}{{.*engine="(\d+)".*}} (\S+)', line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def readiness(server: Server) -> dict[str, Any]:
    answer = httpx.get(f"{server.address}/health/ready", timeout=DEADLINE).json()
    assert isinstance(answer, dict)
    return answer


def test_streams_of_a_core_that_is_killed_go_on_with_the_other(model: str) -> None:
    with Server("--model", model, *TINY, *IN_TURN) as server:
        titles = {process.cmdline()[0] for process in server.tree[1:]}
        assert titles >= {"pyllm::api-0", "pyllm::core-0", "pyllm::core-1"}
        asked, tally = requests(8, 200), Tally()
        twins = twins_of(server.address, asked)
        assert figures(server, "vllm:prefix_cache_queries_total").keys() == {"0", "1"}
        assert min(figures(server, "vllm:prefix_cache_queries_total").values()) > 0, "both have had requests"
        tally.add(asked, twins, kill_at_events(server.address, asked, [200], server.titled(CORE).kill))
        drawn = {"temperature": 1, "max_tokens": 20, "prompt": "The sea is"}
        answers = [
            httpx.post(f"{server.address}/v1/completions", json=drawn, headers={"idempotency-key": "one"}).json()
            for _ in range(3)
        ]
        assert answers == [answers[0]] * 3, "one request, though cores take turns"
        assert tally.is_flawless, tally.record("kills")
        until(lambda: readiness(server)["num_ready_cores"] == 2, "the successor of the core")
        server.tree = server.processes()
    assert server.process.returncode == 0, server.log
    assert server.orphans() == []


@pytest.mark.full
def test_api_processes_make_a_core_free_together_for_what_they_have_lost(model: str, tmp_path: Path) -> None:
    flags = ("--data-parallel-size", "3", "--data-parallel-placement", "round-robin", "--api-server-count", "2")
    asked, tally, told = requests(12, 200), Tally(), False
    for attempt in range(6):  # A core may happen to have nothing to do, and need not be made free.
        file = tmp_path / f"log {attempt}"
        with (
            file.open("w") as log,
            Server("--model", model, *TINY, *flags, "--max-restarts", "0", log_file=log) as server,
        ):
            twins = twins_of(server.address, asked)
            with busy(server):
                tally.add(asked, twins, kill_at_events(server.address, asked, [200], server.titled(CORE).kill))
        assert tally.is_flawless, tally.record("kills")
        if told := bool(re.search(r"core [12] is reserved: \d+ requests go to others", file.read_text())):
            break
    assert told, "no client moved requests off a reserved core"


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Each core always has something to do: requests of different lengths follow one another."""
    is_over = threading.Event()

    def ask(length: int) -> None:
        while not is_over.is_set():
            server.complete("Once upon a time", max_tokens=length, ignore_eos=True)

    threads = [threading.Thread(target=ask, args=(length,)) for length in range(100, 500, 25)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.full
def test_each_core_and_each_api_process_is_recorded_whatever_takes_its_place(model: str, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    recorded = ("--data-parallel-size", "2", "--scheduler-recording", str(path))
    with Server("--model", model, *TINY, *recorded) as server:
        for _ in range(3):
            assert server.complete("The sea is", max_tokens=2).status_code == 200
        first = Path(f"{path}.placement-0")
        until(lambda: first.stat().st_size > 0 and replay_file(first)["num_choices"] == 3, "the recording's writer")
        server.titled("pyllm::api-0").kill()
        again = Path(f"{path}.placement-0.1")
        until(again.exists, "the successor of the API process")
        until(lambda: readiness(server)["num_ready_cores"] == 2, "its cores")
        assert server.complete("The sea is", max_tokens=2).status_code == 200
        server.tree = server.processes()
    assert server.process.returncode == 0, server.log
    assert replay_file(again)["num_choices"] == 1
    assert not replay_file(again)["is_truncated"]
    assert replay_file(first)["num_choices"] == 3
    assert sum(replay_file(each)["stats"]["num_requests"] for each in (path, Path(f"{path}.core-1"))) == 0


@pytest.mark.full
def test_a_server_goes_on_without_a_core_that_is_lost_for_good_and_ends_with_the_last(model: str) -> None:
    with Server("--model", model, *TINY, *IN_TURN, "--max-restarts", "0") as server:
        before = server.complete("The sea is", max_tokens=20).json()["choices"]
        server.titled("pyllm::core-0").kill()
        until(lambda: readiness(server)["num_ready_cores"] == 1, "the loss of a core")
        assert [server.complete("The sea is", max_tokens=20).json()["choices"] for _ in range(4)] == [before] * 4
        status = readiness(server)
        assert (status["status"], status["num_cores"]) == ("ready", 2)
        assert server.process.poll() is None
        server.titled("pyllm::core-1").kill()
        assert server.wait() != 0
    assert "core 0 was killed by SIGKILL" in server.log
    assert "the 1 of 2 that are left go on" in server.log


@pytest.mark.full
def test_an_engine_in_a_program_has_several_cores_and_lives_as_long_as_one(model: str) -> None:
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    options = {"device": "cpu", "kv_cache_memory_bytes": "8MiB", "max_restarts": 0}
    with LLM(model, data_parallel_size=2, data_parallel_placement="round-robin", **options) as llm:
        outputs = llm.generate(["The sea is"] * 4, params, use_tqdm=False)
        assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
        figures = [each for each in llm.get_metrics() if each.name == "vllm:prefix_cache_queries"]
        assert [each.labels["engine"] for each in figures] == ["0", "1"]
        assert all(isinstance(each, Counter) and each.value > 0 for each in figures)
        (core,) = find(os.getpid(), "pyllm::core-0", generations=1)  # Others are of servers.
        core.kill()
        (again,) = llm.generate("The sea is", params, use_tqdm=False)
        assert again.outputs[0].token_ids == outputs[0].outputs[0].token_ids


@pytest.mark.full
def test_each_core_publishes_its_events_and_a_request_may_name_its_core(model: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/events"
    events = ("--enable-kv-cache-events", "--kv-events-endpoint", address)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Server("--model", model, *TINY, *IN_TURN, *events) as server:
        for rank, published in enumerate((address, f"{address}_dp1")):
            with context.socket(zmq.SUB) as subscriber:
                subscriber.setsockopt(zmq.SUBSCRIBE, b"")
                subscriber.connect(published)
                for number in range(100):  # until the subscription has come
                    body = {"prompt": f"{rank} {number} Once upon a time by the sea", "max_tokens": 1}
                    headers = {"x-data-parallel-rank": str(rank)}
                    httpx.post(f"{server.address}/v1/completions", json=body, headers=headers, timeout=DEADLINE)
                    if subscriber.poll(100):
                        break
                _, batch_events, told = msgspec.msgpack.decode(subscriber.recv_multipart()[2])
                assert (batch_events[0]["type"], told) == ("BlockStored", rank)
        wrong = httpx.post(f"{server.address}/v1/completions", json=body, headers={"x-data-parallel-rank": "2"})
        assert (wrong.status_code, "there is no core 2" in wrong.json()["error"]["message"]) == (400, True)
    context.term()


@contextmanager
def headless_core(model: str, folder: Path) -> Iterator[str]:
    """A `pyllm core` of the same model; gives its address."""
    address = f"ipc://{folder}/core"
    command = [sys.executable, "-m", "pyllm", "core", model, "--bind", address, *TINY, "--no-warm-spares"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert address in process.stdout.readline()
        yield address
        process.terminate()
    assert process.returncode == 0


def cores_of(server: Server) -> list[dict[str, Any]]:
    """As some API process sees them."""
    answer = httpx.get(f"{server.address}/admin/cores", timeout=DEADLINE)
    assert answer.status_code == httpx.codes.OK, answer.text
    found = answer.json()["data"]
    assert isinstance(found, list)
    return found


def indices(server: Server) -> list[list[int]]:
    """The cores that take requests, as whoever answers sees them, asked several times."""
    return [[core["index"] for core in cores_of(server) if core["ready"]] for _ in range(6)]


@pytest.mark.full
def test_cores_come_and_leave_under_streams_whichever_api_process_is_asked(model: str, tmp_path: Path) -> None:
    flags = ("--api-server-count", "2", "--admin-on-loopback")
    with headless_core(model, tmp_path) as address, Server("--model", model, *TINY, *flags) as server:
        admin = f"{server.address}/admin/cores"
        asked, tally = requests(8, 300), Tally()
        twins = twins_of(server.address, asked)

        def add() -> None:
            added = httpx.post(admin, json={"address": address}, timeout=DEADLINE)
            assert (added.status_code, [core["index"] for core in added.json()["data"]]) == (201, [0, 1]), added.text

        tally.add(asked, twins, kill_at_events(server.address, asked, [100], add))
        until(lambda: indices(server) == [[0, 1]] * 6, "all API processes to know the core")
        again = httpx.post(admin, json={"address": address}, timeout=DEADLINE)
        assert (again.status_code, "is there already" in again.json()["error"]["message"]) == (400, True)

        def remove() -> None:
            assert httpx.delete(f"{admin}/0", params={"timeout": 0}, timeout=DEADLINE).status_code == 202

        tally.add(asked, twins, kill_at_events(server.address, asked, [100], remove))
        assert tally.is_flawless, tally.record("cores that come and leave")
        until(lambda: indices(server) == [[1]] * 6, "all API processes to have left the core")
        until(lambda: all(len(cores_of(server)) == 1 for _ in range(6)), "the core to be gone")
        last = httpx.delete(f"{admin}/1", timeout=DEADLINE)
        assert (last.status_code, "the only one" in last.json()["error"]["message"]) == (400, True)
        assert httpx.delete(f"{admin}/7", timeout=DEADLINE).status_code == 404
        server.tree = server.processes()
        for process in [server.titled(f"pyllm::api-{index}") for index in (0, 1)]:
            process.kill()  # What follows them knows the cores as they are now, not as they were at the start.
        until(lambda: goes_on(server), "the next API processes")
        assert [core["index"] for core in cores_of(server)] == [1]
        assert server.complete("The sea is", max_tokens=5).status_code == httpx.codes.OK
        assert server.stop() == 0


@pytest.mark.full
def test_the_only_api_process_dies_and_the_next_one_has_the_same_cores(model: str, tmp_path: Path) -> None:
    flags = ("--data-parallel-size", "2", "--admin-on-loopback")
    with headless_core(model, tmp_path) as address, Server("--model", model, *TINY, *flags) as server:
        admin = f"{server.address}/admin/cores"
        assert httpx.post(admin, json={"address": address}, timeout=DEADLINE).status_code == 201
        assert httpx.delete(f"{admin}/0", params={"timeout": 0}, timeout=DEADLINE).status_code == 202
        until(lambda: [core["index"] for core in cores_of(server)] == [1, 2], "the core to be gone")
        server.tree = server.processes()
        server.titled("pyllm::api-0").kill()
        until(lambda: goes_on(server), "the next API process")
        assert [core["index"] for core in cores_of(server)] == [1, 2]
        assert server.complete("The sea is", max_tokens=5).status_code == httpx.codes.OK
        assert server.stop() == 0


def goes_on(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health", timeout=DEADLINE).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
