"""An executor without a model: a cost model gives the time of a step, on a virtual clock, without waiting.

Pass `executor.clock` to the `EngineCore` to run it in virtual time. Does not know requests: a token is a function of
its uniform alone, so an answer depends on seed, position and sample, whatever the schedule.
"""

from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.engine.empty_worker import METHODS
from pyllm._rust import Plan
from pyllm.errors import Cause, ConfigError, EngineDeadError, WorkerDeadError
from pyllm.wire.messages import Embeddings, Sampled, Sampling
from pyllm.wire.plan_layout import PLAN_SECTIONS, plan_offsets

_SECTION_INDICES = {name: index for index, (name, _) in enumerate(PLAN_SECTIONS)}
_DTYPES = {"i": "<i4", "f": "<f4", "B": "u1"}


class VirtualClock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, until: float) -> None:
        """Go forward to `until`; the clock never goes back."""
        self._now = max(self._now, until)


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, linear in its computed and read tokens."""

    base: float  # of any step
    prefill_token: float  # of a token in a row of several
    decode_row: float  # of a row of one token
    context: float  # of 1,000 tokens of context that rows read

    @classmethod
    def fit(cls, measured: Sequence[tuple[Plan, float]]) -> "StepCost":
        """The costs that fit measured (plan, seconds) best: least squares, none of them below zero.

        Raises:
            ConfigError: fewer steps than costs.
        """
        if len(measured) < 4:
            raise ConfigError(f"{len(measured)} measured steps do not determine 4 costs; measure at least 4")
        loads = np.array([_load(plan) for plan, _ in measured])
        seconds = np.array([seconds for _, seconds in measured])
        costs = np.zeros(4)
        kept = np.arange(4)
        while len(kept):
            fitted = np.linalg.lstsq(loads[:, kept], seconds)[0]
            if fitted.min() >= 0.0:
                costs[kept] = fitted
                break
            kept = np.delete(kept, fitted.argmin())  # a cost below zero is noise, and would turn time back
        return cls(*costs.tolist())

    def seconds(self, plan: Plan) -> float:
        """The expected seconds of a plan."""
        _, prefill_tokens, decode_rows, context = _load(plan)
        rows = self.prefill_token * prefill_tokens + self.decode_row * decode_rows
        return self.base + rows + self.context * context


class SimulatedExecutor:
    """One rank, which computes a step at a time: a step submitted earlier begins when the one before has ended.

    An embedding has `hidden_size` numbers, at least 2, and is a function of its prompt's length alone.
    """

    def __init__(self, cost: StepCost, *, num_blocks: int, vocab_size: int, hidden_size: int = 2) -> None:
        self.clock = VirtualClock()
        self._cost = cost
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._pooling: set[int] = set()  # slots
        self._decoder = msgspec.msgpack.Decoder(Sampling)
        self._busy_until = 0.0
        self._methods = METHODS | {"num_blocks": num_blocks}

    @property
    def death(self) -> WorkerDeadError | None:
        """The death of the executor; always None."""
        return None

    async def start(self) -> None:
        """Do nothing: there is no model to load."""

    def submit(self, plan: Plan, transfers: bytes = b"") -> Awaitable[Sampled]:
        self._busy_until = max(self._busy_until, self.clock()) + self._cost.seconds(plan)
        tokens = (section(plan, "uniforms").astype(np.float64) * self._vocab_size).astype("<i4")
        starts = section(plan, "sampled_starts")
        sampled = Sampled(plan.step, starts.tobytes(), tokens.tobytes(), embeddings=self._embeddings(plan, starts))
        return _Answer(self.clock, self._busy_until, sampled)

    def kill(self, cause: Cause) -> None:
        """Do nothing: there is no process to end."""

    async def restart(self) -> None:
        """Return to the state after `start`: no slots and no steps in flight."""
        self._pooling.clear()
        self._busy_until = self.clock()

    async def collective(self, method: str, *args: Any) -> list[Any]:
        del args
        if method not in self._methods:
            raise EngineDeadError(f"a simulated rank does not know {method!r}; known: {', '.join(self._methods)}")
        return [self._methods[method]]

    async def close(self) -> None:
        """Do nothing: there are no resources."""

    def _embeddings(self, plan: Plan, starts: npt.NDArray[np.int32]) -> Embeddings | None:
        self._pooling.difference_update(section(plan, "slot_copies")[1::2].tolist())
        sampling, sampling_starts = section(plan, "sampling").tobytes(), section(plan, "sampling_starts").tolist()
        for index, slot in enumerate(section(plan, "slot_inits").tolist()):
            parameters = sampling[sampling_starts[index] : sampling_starts[index + 1]]
            if parameters and self._decoder.decode(parameters).pooling:
                self._pooling.add(slot)
            else:
                self._pooling.discard(slot)
        if not self._pooling:
            return None
        pooled = np.isin(section(plan, "slots"), list(self._pooling)) & (np.diff(starts) > 0)
        vectors = np.zeros((np.count_nonzero(pooled), self._hidden_size), "<f4")
        angles = section(plan, "sequence_lengths")[pooled]
        vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
        ends = np.concatenate(([0], pooled.cumsum() * self._hidden_size)).astype("<i4")
        return Embeddings(ends.tobytes(), vectors.tobytes())


def section(plan: Plan, name: str) -> npt.NDArray[Any]:
    """A section of a plan, as an array over its buffer."""
    counts = tuple(plan.counts)
    index = _SECTION_INDICES[name]
    dtype = _DTYPES[PLAN_SECTIONS[index][1]]
    return np.frombuffer(memoryview(plan), dtype, counts[index], plan_offsets(counts)[index])


class _Answer:
    """A step's tokens; the step ends when they are awaited."""

    def __init__(self, clock: VirtualClock, ready_at: float, sampled: Sampled) -> None:
        self._clock = clock
        self._ready_at = ready_at
        self._sampled = sampled

    def __await__(self) -> Generator[None, None, Sampled]:
        yield  # to the event loop, so that clients' messages are handled between two steps
        self._clock.advance(self._ready_at)
        return self._sampled


def _load(plan: Plan) -> tuple[float, float, float, float]:
    """The factor of each cost for a plan."""
    lengths = np.diff(section(plan, "query_starts"))
    decode_rows = int(np.count_nonzero(lengths == 1))
    context = int(section(plan, "sequence_lengths").sum(dtype=np.int64))
    return 1.0, plan.num_tokens - decode_rows, decode_rows, context / 1000
