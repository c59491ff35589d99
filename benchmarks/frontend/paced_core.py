"""A core without a model that samples one token a row at a fixed rate, in its own process, and its API process.

Measurements with it are of the path of a token from the core's socket on.
"""

import asyncio
import time
from collections.abc import Awaitable
from functools import partial

import msgspec

from benchmarks.engine import spawned_core
from benchmarks.engine.simulated_executor import SimulatedExecutor, StepCost
from pyllm._rust import Plan
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.errors import WorkerDeadError
from pyllm.launch.resolve import resolve_config
from pyllm.supervision.child_process import ChildProcess
from pyllm.wire.messages import Sampled

NO_COST = StepCost(base=0.0, prefill_token=0.0, decode_row=0.0, context=0.0)
MAX_MODEL_LEN = 4096
BLOCK_SIZE = 16


class PacedExecutor:
    """A simulated executor whose steps begin at least `interval` seconds after one another."""

    def __init__(self, executor: SimulatedExecutor, interval: float) -> None:
        self._executor = executor
        self._interval = interval
        self._due = 0.0
        self.start = executor.start
        self.restart = executor.restart
        self.kill = executor.kill
        self.collective = executor.collective
        self.close = executor.close

    @property
    def death(self) -> WorkerDeadError | None:
        return self._executor.death

    def submit(self, plan: Plan, transfers: bytes = b"") -> Awaitable[Sampled]:
        return self._answer(self._executor.submit(plan, transfers))

    async def _answer(self, sampled: Awaitable[Sampled]) -> Sampled:
        now = time.monotonic()
        await asyncio.sleep(self._due - now)
        self._due = max(now, self._due) + self._interval
        return await sampled


def config(folder: str, rows: int, max_model_len: int = MAX_MODEL_LEN) -> CoreConfig:
    """A core with the embedded model's vocabulary, and a slot and KV cache for each of `rows` sequences.

    The context may be longer than the model's.
    """
    engine, checkpoint = resolve_config(
        engine_config(
            {
                "max_num_seqs": rows,
                "max_num_batched_tokens": 1 << 16,
                "block_size": BLOCK_SIZE,
                "device": "cpu",
            }
        )
    )
    engine = msgspec.structs.replace(engine, model=msgspec.structs.replace(engine.model, max_model_len=max_model_len))
    return spawned_core.configure(folder, engine, checkpoint)


def start(core: CoreConfig, interval: float) -> ChildProcess:
    """Start the core's process, watched by the running event loop."""
    return spawned_core.start(core, partial(_paced, interval))


def _paced(interval: float, core: CoreConfig, context: object) -> PacedExecutor:
    del context
    simulated = SimulatedExecutor(
        NO_COST,
        num_blocks=core.engine.scheduler.max_num_seqs * (core.engine.model.max_model_len or 0) // BLOCK_SIZE,
        vocab_size=core.checkpoint.spec.vocab_size,
        hidden_size=core.checkpoint.spec.hidden_size,
    )
    return PacedExecutor(simulated, interval)
