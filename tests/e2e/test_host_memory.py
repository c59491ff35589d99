"""KV blocks on the host outlive workers and cores: the cache has the same tokens, and the answers are the same."""

import os
import signal
import struct
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from pyllm import AsyncEngine, SamplingParams
from pyllm.core.replay import replay_file
from tests.e2e.titles import CORE, find
from tests.tiny_model import write_tiny_model

BLOCK_BYTES = 2 * 2 * 16 * 1 * 16 * 4  # of a rank: keys and values, layers, tokens, heads, head_dim, float32
NUM_PROMPTS, PROMPT_LENGTH = 5, 70
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
WORKERS = ["pyllm::worker-0-0", "pyllm::worker-0-1"]
HEADER, ENTRY, VALID = 64, 64, 2


class Answers(NamedTuple):
    tokens: list[list[int]]
    cached: list[int]


async def ask(engine: AsyncEngine) -> Answers:
    """Ask for each prompt alone; all together they are far more than the device has room for."""
    tokens, cached = [], []
    for number in range(NUM_PROMPTS):
        prompt = [(7 * number + position) % 200 + 3 for position in range(number, number + PROMPT_LENGTH)]
        async for output in engine.generate(prompt, PARAMS):
            last = output
        tokens.append(last.outputs[0].token_ids)
        cached.append(last.num_cached_tokens or 0)
    return Answers(tokens, cached)


def memories() -> list[int]:
    """Our descriptors of host memory, by rank."""
    links = {
        int(file): link for file in os.listdir("/proc/self/fd") if (link := _link(file)).startswith("/memfd:pyllm")
    }
    return sorted(links, key=lambda file: links[file])


def _link(file: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:  # of the folder that was listed
        return ""


def valid_blocks(memory: int) -> list[int]:
    """The blocks that count, as the index says."""
    (num_blocks,) = struct.unpack("=Q", os.pread(memory, 8, 8))
    states = (struct.unpack("=I", os.pread(memory, 4, HEADER + block * ENTRY))[0] for block in range(num_blocks))
    return [block for block, state in enumerate(states) if state == VALID]


def flip_bit(memory: int, block: int) -> None:
    """In the middle of a block."""
    (num_blocks,) = struct.unpack("=Q", os.pread(memory, 8, 8))
    at = os.fstat(memory).st_size - (num_blocks - block) * BLOCK_BYTES + BLOCK_BYTES // 2
    (byte,) = os.pread(memory, 1, at)
    os.pwrite(memory, bytes([byte ^ 16]), at)


class OwnProcesses:
    """Those that this process starts from now on: other tests' engines may live beside."""

    def __init__(self) -> None:
        self._others = set(psutil.Process().children(recursive=True))

    def living(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children(recursive=True) if process not in self._others]

    def titled(self, title: str) -> list[psutil.Process]:
        return [process for process in find(os.getpid(), title) if process not in self._others]

    def kill(self, title: str) -> None:
        (process,) = self.titled(title)
        process.send_signal(signal.SIGKILL)

    def num_descriptors(self) -> list[int]:
        """The number of open descriptors of the core, which lives longer than workers."""
        return [process.num_fds() for process in self.titled(CORE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), heads=4, kv_heads=2)


async def test_kills_leave_the_cached_tokens_and_the_answers_as_they_were(model: str, tmp_path: Path) -> None:
    own = OwnProcesses()
    engine = AsyncEngine(
        model,
        dtype="float32",
        tensor_parallel_size=2,
        kv_cache_memory_bytes=8 * BLOCK_BYTES,
        kv_offloading_size="512KiB",
        max_model_len=96,
        enable_kv_cache_events=True,
        scheduler_recording=str(tmp_path / "recording"),
        warm_spares=False,  # whose descriptors come and go
    )
    assert memories() == []
    async with engine:
        first = await ask(engine)
        twin = await ask(engine)
        assert twin.tokens == first.tokens
        assert twin.cached == [64] * NUM_PROMPTS, "all full blocks were on the host"
        assert len(memories()) == 2, "one of each rank"
        before = own.num_descriptors()
        for victim in [*WORKERS, CORE, WORKERS[0]]:
            own.kill(victim)
            assert await ask(engine) == twin, victim
        assert (await engine.stats())["host_prefix_hits"] > 0
        assert (own.num_descriptors(), len(memories())) == (before, 2)

        # A block that is damaged on one rank is computed anew on both.
        memory = memories()[0]
        flip_bit(memory, valid_blocks(memory)[len(valid_blocks(memory)) // 2])
        own.kill(WORKERS[1])
        after = await ask(engine)
        assert after.tokens == twin.tokens
        assert 0 < sum(after.cached) < sum(twin.cached)
        assert await ask(engine) == twin

        await engine.reset_prefix_cache()
        own.kill(CORE)
        assert (await ask(engine)).cached == first.cached, "what was reset is not found by the next core, either"
    assert memories() == []
    replayed = [replay_file(tmp_path / f"recording{number}") for number in ("", ".1", ".2")]
    assert replayed[2]["num_steps"] > 0, "a core that is killed may lose what it recorded last"
    assert not own.living()
