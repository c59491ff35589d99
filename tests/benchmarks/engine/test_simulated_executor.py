import math
from array import array
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.engine.simulated_executor import SimulatedExecutor, StepCost, section
from pyllm._rust import Plan, Scheduler
from pyllm.config.engine_settings import EngineConfig
from pyllm.core.composition import CoreSetup, Surroundings, compose
from pyllm.errors import ConfigError, EngineDeadError
from pyllm.wire.messages import (
    POOLING,
    PROTOCOL_VERSION,
    CoreMessage,
    Deltas,
    FinishCode,
    Hello,
    ModelInfo,
    Ready,
    Sampling,
    Submit,
)
from tests.core.executors.planned import plans

VOCAB_SIZE = 1000
COST = StepCost(base=0.010, prefill_token=0.001, decode_row=0.002, context=0.5)
DRAWN = Sampling()


def make_scheduler(num_blocks: int) -> Scheduler:
    return Scheduler(
        block_size=4,
        num_blocks=num_blocks,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        max_model_len=128,
        vocab_size=VOCAB_SIZE,
        enable_prefix_caching=False,
    )


class Simulation:
    """A core over the simulated executor, on its clock, and one client that notes when it got what."""

    def __init__(self, num_blocks: int = 64, depth: int = 1) -> None:
        self.executor = SimulatedExecutor(COST, num_blocks=num_blocks, vocab_size=VOCAB_SIZE)
        self.scheduler = make_scheduler(num_blocks)
        self.tokens: dict[int, list[int]] = {}
        self.finished_at: dict[int, float] = {}
        self.embeddings: dict[int, list[float]] = {}
        model = ModelInfo(
            name="simulated",
            max_model_len=128,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(),
            dtype="float32",
            quantization="none",
            kv_cache_dtype="float32",
            block_size=4,
            num_blocks=num_blocks,
            kv_cache_tokens=4 * num_blocks,
            max_num_seqs=8,
            max_num_batched_tokens=32,
            tensor_parallel_size=1,
        )
        ready = Ready(PROTOCOL_VERSION, 0, model, "fingerprint")
        setup = CoreSetup(
            scheduler=self.scheduler, executor=self.executor, ready=ready, config=EngineConfig(), depth=depth
        )
        self.core = compose(setup, self, Surroundings(clock=self.executor.clock))
        self.core.receive(b"client", Hello(PROTOCOL_VERSION))

    def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
        del frames, identity
        if isinstance(message, Deltas):
            starts, tokens = array("i", message.token_starts), array("i", message.tokens)
            for row, request in enumerate(array("Q", message.requests)):
                self.tokens.setdefault(request, []).extend(tokens[starts[row] : starts[row + 1]])
                if message.embedding_starts and (ends := array("i", message.embedding_starts)[row : row + 2]):
                    self.embeddings[request] = array("f", message.embeddings)[ends[0] : ends[1]].tolist()
                if message.finishes[row] != FinishCode.NONE:
                    self.finished_at[request] = self.executor.clock()
        return True

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""

    def submit(self, request: int, prompt_tokens: int, max_tokens: int, sampling: Sampling = DRAWN) -> None:
        prompt = array("i", range(prompt_tokens)).tobytes()
        self.core.receive(b"client", Submit(0, request, prompt, request, max_tokens, sampling))

    async def run_dry(self) -> None:
        while await self.core.step():
            pass


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_core_runs_in_virtual_time(depth: int) -> None:
    simulation = Simulation(depth=depth)
    simulation.submit(1, prompt_tokens=10, max_tokens=3)
    await simulation.run_dry()
    # One step computes the prompt; two decode, with 11 and 12 tokens of context.
    expected = 3 * 0.010 + 10 * 0.001 + 2 * 0.002 + (10 + 11 + 12) / 1000 * 0.5
    assert simulation.finished_at[1] == pytest.approx(expected)
    assert simulation.core.stats()["num_requests"] == 0
    # The rank is idle until then; what comes later does not begin earlier.
    simulation.executor.clock.advance(100.0)
    simulation.submit(2, prompt_tokens=10, max_tokens=3)
    await simulation.run_dry()
    assert simulation.finished_at[2] == pytest.approx(100.0 + expected)


async def test_tokens_do_not_depend_on_the_schedule() -> None:
    roomy, tight = Simulation(num_blocks=256), Simulation(num_blocks=24, depth=2)
    for simulation in (roomy, tight):
        for request in range(8):
            simulation.submit(request, prompt_tokens=20, max_tokens=40)
        await simulation.run_dry()
    assert tight.core.stats()["num_preemptions"] > 0
    assert roomy.tokens == tight.tokens
    assert {len(tokens) for tokens in roomy.tokens.values()} == {40}
    assert len({token for tokens in roomy.tokens.values() for token in tokens}) > 100
    assert roomy.executor.clock() < tight.executor.clock()


@pytest.mark.parametrize("depth", [1, 2])
async def test_embeddings_are_a_function_of_their_prompts_length(depth: int) -> None:
    simulation = Simulation(depth=depth)
    for request in range(12):
        pools = request % 3 > 0
        simulation.submit(request, 5 + request * 9, 0 if pools else 8, POOLING["last"] if pools else DRAWN)
    await simulation.run_dry()
    embeddings = {request: vector for request, vector in simulation.embeddings.items() if vector}
    lengths = {request: 5 + request * 9 for request in range(12) if request % 3}
    assert embeddings.keys() == lengths.keys()
    for request, length in lengths.items():
        assert embeddings[request] == pytest.approx([math.cos(length), math.sin(length)])
    assert len(simulation.tokens[3]) == 8
    assert not simulation.tokens[4]


def measured_plans() -> list[Plan]:
    """Prefills and decodes in several mixtures."""
    scheduler = make_scheduler(256)
    made = []
    for request in range(6):
        scheduler.add(0, request, array("i", range(7 + 5 * request)).tobytes(), seed=0, max_tokens=40)
        for _ in range(3):
            plan = scheduler.schedule(0.0)
            assert plan is not None
            made.append(plan)
            starts = section(plan, "sampled_starts")
            scheduler.commit(plan.step, starts.tobytes(), np.zeros(starts[-1], np.int32).tobytes())
    return made


def test_fit_finds_the_costs_that_were_measured() -> None:
    measured = [(plan, COST.seconds(plan)) for plan in measured_plans()]
    fitted = StepCost.fit(measured)
    assert fitted.base == pytest.approx(COST.base)
    assert fitted.prefill_token == pytest.approx(COST.prefill_token)
    assert fitted.decode_row == pytest.approx(COST.decode_row)
    assert fitted.context == pytest.approx(COST.context)


def test_no_fitted_cost_is_below_zero() -> None:
    gain = StepCost(base=0.010, prefill_token=0.001, decode_row=-0.0005, context=0.0)
    fitted = StepCost.fit([(plan, gain.seconds(plan)) for plan in measured_plans()])
    assert fitted.decode_row == 0.0
    assert min(fitted.base, fitted.prefill_token, fitted.context) >= 0.0


def test_fit_needs_as_many_steps_as_there_are_costs() -> None:
    with pytest.raises(ConfigError, match="3 measured steps do not determine 4 costs"):
        StepCost.fit([(plan, 1.0) for plan in plans(3)])


async def test_steps_in_flight_are_computed_one_after_another() -> None:
    executor = SimulatedExecutor(COST, num_blocks=64, vocab_size=VOCAB_SIZE)
    made = plans(4)
    answers = [executor.submit(plan) for plan in made]
    assert executor.clock() == 0.0
    ends = [0.0]
    for plan, answer in zip(made, answers, strict=True):
        sampled = await answer
        assert sampled.step == plan.step
        assert len(sampled.tokens) == 4 * len(section(plan, "uniforms"))
        ends.append(executor.clock())
    assert [later - earlier for earlier, later in pairwise(ends)] == pytest.approx(
        [COST.seconds(plan) for plan in made]
    )


async def test_what_a_core_asks_of_its_ranks() -> None:
    executor = SimulatedExecutor(COST, num_blocks=64, vocab_size=VOCAB_SIZE)
    await executor.start()
    assert await executor.collective("num_blocks") == [64]
    assert await executor.collective("allocate", 64) == [None]
    with pytest.raises(EngineDeadError, match="'unknown'"):
        await executor.collective("unknown")
    await executor.close()
    await executor.close()


async def test_restart_forgets_what_was_in_flight() -> None:
    executor = SimulatedExecutor(COST, num_blocks=64, vocab_size=VOCAB_SIZE)
    first, second = plans(2)
    executor.submit(first)
    await executor.restart()
    assert executor.death is None
    await executor.submit(second)
    assert executor.clock() == pytest.approx(COST.seconds(second))
