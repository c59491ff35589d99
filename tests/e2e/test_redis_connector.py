"""`kv_cache_redis_url` with a real redis-server: shared by engines. Full, stopped or gone, it costs hits only."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from pyllm import LLMEngine, SamplingParams
from tests import in_process
from tests.kv_transfer.stores.redis_server import redis_server

pytestmark = pytest.mark.services
# A start that all share and a tail of each one's own.
PROMPTS = [[7] * 48 + [number + position for position in range(60)] for number in range(1, 9)]
NUM_TOKENS = 6
# The device keeps some of the prompts only, so that the others are looked for in Redis each time.
NUM_BLOCKS = 32


class Engine:
    """With the store in Redis, or without one."""

    def __init__(self, model: str, url: str = "") -> None:
        self._engine = LLMEngine(model, dtype="float32", num_gpu_blocks_override=NUM_BLOCKS, kv_cache_redis_url=url)

    def ask(self, prompts: list[list[int]]) -> list[list[int]]:
        """The answers to prompts that come at once, once all have ended."""
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        return in_process.tokens(in_process.generate(self._engine, prompts, params))

    def figure(self, name: str) -> int:
        return self._engine.stats()[name]

    def close(self) -> None:
        self._engine.close()


def fill(process: subprocess.Popen[str], admin: Redis) -> None:
    """There is no room for any more."""
    del process
    admin.config_set("maxmemory", 1)  # Redis's policy is noeviction unless it is told otherwise.


def stop(process: subprocess.Popen[str], admin: Redis) -> None:
    """It takes connections and answers nothing."""
    del admin
    process.send_signal(signal.SIGSTOP)


def kill(process: subprocess.Popen[str], admin: Redis) -> None:
    del admin
    process.kill()
    process.wait()


@pytest.mark.parametrize("fail", [fill, stop, kill])
def test_a_redis_that_fails_costs_hits_and_nothing_else(
    model: str, tmp_path: Path, fail: Callable[[subprocess.Popen[str], Redis], None]
) -> None:
    without = Engine(model)
    expected, of_others = without.ask(PROMPTS), without.ask([prompt[::-1] for prompt in PROMPTS])
    without.close()
    with redis_server(tmp_path) as process, Redis(unix_socket_path=str(tmp_path / "redis.sock")) as admin:
        url = f"unix://{tmp_path}/redis.sock"
        first = Engine(model, url)
        assert first.ask(PROMPTS) == expected
        first.close()  # It writes what it has copied.
        assert admin.dbsize() > 0
        second = Engine(model, url)
        assert second.ask(PROMPTS[:1]) == expected[:1]
        assert second.figure("num_kv_loaded_tokens") > 0, "what the first engine has computed"
        fail(process, admin)
        num_kept = admin.dbsize() if fail is fill else 0
        # No answer of Redis's comes any more for a stopped or dead one, and yet all of these end.
        assert second.ask(PROMPTS) == expected
        assert second.ask([prompt[::-1] for prompt in PROMPTS]) == of_others
        assert second.figure("num_kv_lookups") > len(PROMPTS)
        left = ("num_requests", "num_loading", "num_held", "num_kv_loads")
        assert [second.figure(name) for name in left] == [0] * len(left)
        assert second.figure("num_used_blocks") == second.figure("num_saving_blocks"), "until the next step"
        second.close()
        if fail is fill:
            assert admin.dbsize() == num_kept
