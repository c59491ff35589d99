"""The use of the paged KV cache, the savings of sharing, and the sequences at once: the scheduler, without a model.

Requests have realistic lengths, and some always wait, so that memory is the limit. Time is virtual, in steps.
"""

import asyncio
import subprocess
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from statistics import mean
from typing import Any, NamedTuple

import numpy.typing as npt
from msgspec.structs import astuple

from benchmarks.engine import rust_example
from benchmarks.engine.beams import Candidates
from benchmarks.engine.simulated_executor import SimulatedExecutor, StepCost, section
from benchmarks.record import Record
from pyllm._rust import Plan, Scheduler

MAX_MODEL_LEN = 2048
VOCAB_SIZE = 1 << 20
QUEUE = 64  # requests that wait
A_STEP_IS_A_SECOND = StepCost(base=1.0, prefill_token=0.0, decode_row=0.0, context=0.0)


def slot_share() -> Iterator[Record]:
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128):
        simulation = Simulation(lengths(600), num_tokens=131_072, block_size=block_size)
        value = asyncio.run(simulation.mean_while_some_come(simulation.slot_share))
        yield {"name": "memory.slot_share", "value": round(value, 4), "unit": "", "block_size": block_size}


def blocks_saved() -> Iterator[Record]:
    for n in (2, 4, 6):
        simulation = Simulation(lengths(200), num_tokens=131_072, n=n)
        value = asyncio.run(simulation.mean_while_some_come(simulation.blocks_saved))
        yield {"name": "memory.blocks_saved", "value": round(value, 4), "unit": "", "n": n}
    simulation = Simulation(lengths(200), num_tokens=131_072, n=4, beam_width=4)
    value = asyncio.run(simulation.mean_while_some_come(simulation.blocks_saved))
    yield {"name": "memory.blocks_saved", "value": round(value, 4), "unit": "", "beams": 4}


def running() -> Iterator[Record]:
    num_tokens = 65_536
    simulation = Simulation(lengths(1000), num_tokens=num_tokens, max_num_seqs=1024)
    value = asyncio.run(simulation.mean_while_some_come(simulation.num_running))
    reserved = num_tokens // MAX_MODEL_LEN
    yield {"name": "memory.running", "value": round(value, 1), "unit": "requests", "reserved": reserved}


def occupancy() -> Iterator[Record]:
    slots = 64
    mix = lengths(4000)
    simulation = Simulation(mix, num_tokens=slots * MAX_MODEL_LEN, max_num_seqs=slots)
    value = asyncio.run(simulation.mean_of_all_steps(lambda plan: plan.num_rows / slots))
    batches = [mix[first : first + slots] for first in range(0, len(mix), slots)]
    num_steps = sum(max(outputs for _, outputs in batch) for batch in batches)
    static = sum(outputs for _, outputs in mix) / (num_steps * slots)
    yield {"name": "memory.occupancy", "value": round(value, 4), "unit": "", "static": round(static, 4)}


def preemption_rate() -> Iterator[Record]:
    mix = lengths(1000)
    num_outputs = sum(outputs for _, outputs in mix)
    num_to_compute = sum(prompt + outputs - 1 for prompt, outputs in mix)  # the last output is never read
    for expected_growth in (0.0, 1.0):
        simulation = Simulation(mix, num_tokens=32_768, expected_growth=expected_growth)
        asyncio.run(simulation.mean_of_all_steps(simulation.num_running))
        stats = simulation.scheduler.stats()
        yield {
            "name": "memory.preemption_rate",
            "value": round(stats["num_preemptions"] / len(mix), 4),
            "unit": "per request",
            "expected_growth": expected_growth,
            "tokens_per_step": round(num_outputs / stats["num_steps"], 1),
            "recomputed": round(stats["num_computed_tokens"] / num_to_compute - 1, 4),
        }


def growth() -> Iterator[Record]:
    program = rust_example.build("million")
    if program is None:
        return
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in output.splitlines()]
    for requests, megabytes in (lines[0], lines[-1]):
        yield {"name": "memory.growth", "value": float(megabytes), "unit": "MB", "requests": int(requests)}


FIGURES: dict[str, Callable[[], Iterator[Record]]] = {
    "memory.slot_share": slot_share,
    "memory.blocks_saved": blocks_saved,
    "memory.running": running,
    "memory.occupancy": occupancy,
    "memory.preemption_rate": preemption_rate,
    "memory.growth": growth,
}


class Lengths(NamedTuple):
    """Tokens of a request."""

    prompt: int
    outputs: int


def lengths(number: int) -> list[Lengths]:
    """Log-normal, with ShareGPT's means: about 202 tokens in, up to 1,024, and 179 out, 2,048 together at most."""
    random = Random(0)
    made: list[Lengths] = []
    while len(made) < number:
        prompt, outputs = round(random.lognormvariate(4.93, 1.1)), round(random.lognormvariate(4.8, 0.9))
        if 4 <= prompt <= 1024 and outputs >= 4 and prompt + outputs <= MAX_MODEL_LEN:
            made.append(Lengths(prompt, outputs))
    return made


class Simulation:
    """Requests of these lengths, `n` samples each, in a KV cache of `num_tokens` tokens. No two prompts are alike."""

    def __init__(
        self,
        mix: list[Lengths],
        *,
        num_tokens: int,
        block_size: int = 16,
        max_num_seqs: int = 256,
        n: int = 1,
        beam_width: int = 0,
        **settings: Any,
    ) -> None:
        self.scheduler = Scheduler(
            block_size=block_size,
            num_blocks=num_tokens // block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=4096,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            enable_prefix_caching=True,
            **settings,
        )
        self._beam_width = beam_width
        self._candidates = Candidates(beam_width) if beam_width else None
        self._block_size = block_size
        self._executor = SimulatedExecutor(
            A_STEP_IS_A_SECOND, num_blocks=num_tokens // block_size, vocab_size=VOCAB_SIZE
        )
        self._n = n
        self._to_come = deque(enumerate(mix))

    async def mean_of_all_steps(self, figure: Callable[[Plan], float]) -> float:
        """Run to the end; return the mean of a figure over all planned steps."""
        return mean([figure(plan) async for plan in self._steps()])

    async def mean_while_some_come(self, figure: Callable[[Plan], float]) -> float:
        """Run until the last request is submitted; return the mean, without the end, in which memory becomes free."""
        figures = []
        async for plan in self._steps():
            if not self._to_come:
                break
            figures.append(figure(plan))
        return mean(figures)

    def num_running(self, plan: Plan) -> float:
        """The number of running sequences."""
        del plan
        return self.scheduler.stats()["num_running"]

    def slot_share(self, plan: Plan) -> float:
        """The share of used slots for tokens in all allocated blocks."""
        return int(self._lengths(plan).sum()) / (self.scheduler.stats()["num_used_blocks"] * self._block_size)

    def blocks_saved(self, plan: Plan) -> float:
        """The share of blocks saved by sharing, of those that the sequences would need without it."""
        num_logical = int((-(-self._lengths(plan) // self._block_size)).sum())
        return 1 - self.scheduler.stats()["num_used_blocks"] / num_logical

    def _lengths(self, plan: Plan) -> npt.NDArray[Any]:
        """Tokens in the KV cache of each running sequence. The budget has room for all of them in every plan."""
        assert plan.num_rows == self.scheduler.stats()["num_running"]
        return section(plan, "sequence_lengths")

    async def _steps(self) -> AsyncIterator[Plan]:
        """Yield each step after it is planned and before it is committed."""
        self._fill_queue()
        while (plan := self.scheduler.schedule(self._executor.clock())) is not None:
            yield plan
            sampled = await self._executor.submit(plan)
            logprobs = None if self._candidates is None else astuple(self._candidates.draw(sampled))
            self.scheduler.commit(plan.step, sampled.starts, sampled.tokens, 0.0, logprobs)
            self.scheduler.take_deltas(0)
            self._fill_queue()

    def _fill_queue(self) -> None:
        """Keep some requests waiting, but not all from the start, as later ones benefit from observed lengths."""
        now = self._executor.clock()
        while self._to_come and self.scheduler.stats()["num_waiting"] < QUEUE:
            request, (prompt, outputs) = self._to_come.popleft()
            tokens = array("i", [request, *range(prompt - 1)]).tobytes()
            beams = {"n": self._n, "beam_width": self._beam_width}
            self.scheduler.add(0, request, tokens, seed=request, max_tokens=outputs, arrival=now, **beams)
