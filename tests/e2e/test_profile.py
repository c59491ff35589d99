"""Profiles of a real server: of one rank on the embedded model, and of two ranks of which one dies meanwhile."""

import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.e2e.server import DEADLINE, Server, until
from tests.tiny_model import write_tiny_model

STEPS, RANKS = 6, 2
GENERATION = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


class Profiled:
    """A server whose log says when a profile has begun."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._log = folder / "log"
        self._file = self._log.open("w")
        self.server = Server("--admin-on-loopback", *options, log_file=self._file)

    def __enter__(self) -> "Profiled":
        self.server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.__exit__(*error)
        self._file.close()

    def generate(self) -> Any:
        answer = self.server.complete([5, 6, 7], **GENERATION)
        assert answer.status_code == 200
        return answer.json()["choices"]

    def post(self, **body: Any) -> httpx.Response:
        with httpx.Client(base_url=self.server.address, timeout=DEADLINE) as http:
            return http.post("/admin/profile", json=body)

    def profile(self, meanwhile: Callable[[], object], **body: Any) -> httpx.Response:
        """A profile in the midst of which something happens."""
        before = self._num_begun()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(lambda: self.post(**body))
            until(lambda: self._num_begun() > before or answer.done(), "a profile that runs")
            meanwhile()
            return answer.result(DEADLINE)

    def _num_begun(self) -> int:
        return self._log.read_text().count("recording the next")


def test_one_rank_on_the_embedded_model(tmp_path: Path) -> None:
    with Profiled(tmp_path) as profiled:
        plain = profiled.generate()
        others: list[Any] = []

        def generate() -> None:
            others.append(profiled.post().json()["error"]["code"])
            assert profiled.generate() == plain

        report = profiled.profile(generate, num_steps=STEPS).json()
        assert others == ["profile_running"]
        assert (report["ended_by"], report["note"]) == ("steps", "")
        (rank,) = report["ranks"]
        assert rank["num_steps"] == STEPS
        assert {"paged_attention", "norm + packed_linear"} <= {op["op"] for op in rank["ops"] if op["kind"] == "rust"}
        assert sum(op["share"] for op in rank["ops"]) <= 1
        # Nothing comes: the answer is there after its seconds, as a trace, too.
        empty = profiled.post(seconds=0.1, format="trace")
        trace = msgspec.json.decode(gzip.decompress(empty.content))
        assert "no traffic" in trace["otherData"]["note"]
        assert {event["ph"] for event in trace["traceEvents"]} == {"M"}
        # A core that is lost takes its profile with it; the next core makes the next one.
        lost = profiled.profile(profiled.server.titled("pyllm::core-0").kill, num_steps=STEPS)
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "there is no profile: the connection to the engine core was lost" in lost.json()["error"]["message"]
        assert profiled.generate() == plain
        assert profiled.profile(generate, num_steps=STEPS).json()["ranks"][0]["num_steps"] == STEPS


@pytest.mark.full
def test_two_ranks_of_which_one_dies(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", heads=4, kv_heads=2)
    with Profiled(tmp_path, "--model", model, "--device", "cpu", "--tensor-parallel-size", str(RANKS)) as profiled:
        plain = profiled.generate()
        assert_all_are_there(profiled.profile(profiled.generate, num_steps=STEPS, format="trace"))
        lost = profiled.profile(profiled.server.titled("pyllm::worker-0-1").kill, num_steps=STEPS)
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "the profile was interrupted" in lost.json()["error"]["message"]
        assert "worker 1 of core 0 was killed by SIGKILL" in lost.json()["error"]["message"]
        assert profiled.generate() == plain
        (chosen,) = profiled.profile(profiled.generate, num_steps=STEPS, ranks=[1]).json()["ranks"]
        assert (chosen["rank"], chosen["num_steps"]) == (1, STEPS)
        assert_all_are_there(profiled.profile(profiled.generate, num_steps=STEPS, format="trace"))


def assert_all_are_there(answer: httpx.Response) -> None:
    trace = msgspec.json.decode(gzip.decompress(answer.content))
    ranks = trace["otherData"]["ranks"]
    assert [(rank["rank"], rank["num_steps"]) for rank in ranks] == [(number, STEPS) for number in range(RANKS)]
    for rank in ranks:
        assert sum(op["total_us"] for op in rank["ops"]) <= rank["wall_us"]
        assert {"paged_attention", "packed_linear"} <= {op["op"] for op in rank["ops"] if op["kind"] == "rust"}
    steps = [event for event in trace["traceEvents"] if event.get("cat") == "step"]
    names = [[event["name"] for event in steps if event["pid"] == number] for number in range(RANKS)]
    assert names == [names[0]] * RANKS, "the ranks record the same steps"
    assert len(names[0]) == STEPS
