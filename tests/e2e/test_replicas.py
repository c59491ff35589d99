"""`pyllm serve --data-parallel-size 2`: several cores behind one address, of which one may die, come or leave."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.kills import Tally, kill_at_events, twins_of
from tests.e2e.server import DEADLINE, Server, until
from tests.e2e.survival_streams import STREAMED, Request, Streams
from tests.e2e.titles import CORE
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.timeout(300)  # Processes start many times here, on machines that may be busy.

TINY = ("--device", "cpu", "--kv-cache-memory-bytes", "8MiB", "--distributed-executor-backend", "uni")
IN_TURN = ("--data-parallel-size", "2", "--data-parallel-placement", "round-robin")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=512)


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
        assert tally.is_flawless, tally.record("kills")
        until(lambda: readiness(server)["num_ready_cores"] == 2, "the successor of the core")
        server.tree = server.processes()
    assert server.process.returncode == 0, server.log
    assert server.orphans() == []
