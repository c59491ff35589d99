"""An executor whose KV cache holds tokens. What comes next depends on all that a row reads through its block table, and
on its uniform: whatever was lost or mixed up gives another answer."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np

from pyllm._rust import Plan
from pyllm.errors import Cause, WorkerDeadError
from pyllm.wire.messages import Embeddings, Sampled, Sampling
from tests.plan_reader import read_plan

BLOCK_SIZE = 4
NUM_ANSWERS = 900  # token ids from 0 on that it gives


class RememberingExecutor:
    """Dies with the n-th plan that it is sent, for each n in `deaths`, and with those of which `dies_of` gives a cause.

    `dies_of` is asked with the contexts of the plan's rows.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        deaths: Collection[int] = (),
        dies_of: Callable[[list[list[int]]], Cause | None] = lambda contexts: None,
    ) -> None:
        self.num_blocks = num_blocks
        self.death: WorkerDeadError | None = None
        self.num_restarts = 0
        self.contexts: list[list[list[int]]] = []  # of each plan's rows
        self._deaths = deaths
        self._dies_of = dies_of
        self._forget()

    async def start(self) -> None:
        """Nothing is to be loaded."""

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        assert self.death is None
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        sampled = self._sample(plan)
        cause = "killed" if len(self.contexts) - 1 in self._deaths else self._dies_of(self.contexts[-1])
        self._answers.append((future, sampled if cause is None else cause))
        asyncio.get_running_loop().call_soon(self._answer)
        return future

    def kill(self, cause: Cause) -> None:
        self.death = WorkerDeadError(f"the worker {cause}", cause)
        for future, _ in self._answers:
            if not future.done():
                future.set_exception(self.death)
        self._answers.clear()

    async def restart(self) -> None:
        self.num_restarts += 1
        self.death = None
        self._forget()
        await asyncio.sleep(0)

    async def collective(self, method: str, *args: Any) -> list[Any]:
        del args
        return [{"num_blocks": self.num_blocks, "allocate": None}[method]]

    async def close(self) -> None:
        """Nothing is held."""

    def _forget(self) -> None:
        self._answers: list[tuple[asyncio.Future[Sampled], Sampled | Cause]] = []
        self._cache: dict[int, int] = {}  # token by place
        self._tables: dict[int, dict[int, int]] = {}
        self._last_tokens: dict[int, int] = {}
        self._pooling: set[int] = set()
        self._histories: dict[int, list[int]] = {}

    def _answer(self) -> None:
        """One step after another; the ones behind a death die with it."""
        if not self._answers:
            return
        future, answer = self._answers[0]
        if isinstance(answer, str):
            self.kill(answer)
        else:
            del self._answers[0]
            if not future.done():
                future.set_result(answer)

    def _sample(self, plan: Plan) -> Sampled:
        sections = {name: values.tolist() for name, values in read_plan(plan).items()}
        self._apply_changes(sections)
        starts, slots = sections["query_starts"], sections["slots"]
        for row, slot in enumerate(slots):
            for index in range(starts[row], starts[row + 1]):
                token = sections["tokens"][index]
                position = sections["positions"][index]
                place = self._tables[slot][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                assert place == sections["slot_mapping"][index]
                self._cache[place] = self._last_tokens[slot] if token == -1 else token
        contexts = [self._read(slot, length) for slot, length in zip(slots, sections["sequence_lengths"], strict=True)]
        self.contexts.append(contexts)
        tokens = []
        vectors: list[float] = []
        ends = [0]
        for row, (slot, context) in enumerate(zip(slots, contexts, strict=True)):
            for index in range(sections["sampled_starts"][row], sections["sampled_starts"][row + 1]):
                tokens.append(following(context, sections["uniforms"][index]))
                self._last_tokens[slot] = tokens[-1]
                if slot in self._pooling:
                    vectors.extend([float(sum(context)), float(len(context))])
            ends.append(len(vectors))
        embeddings = Embeddings(np.array(ends, "<i4").tobytes(), np.array(vectors, "<f4").tobytes())
        starts = np.array(sections["sampled_starts"], "<i4").tobytes()
        return Sampled(plan.step, starts, np.array(tokens, "<i4").tobytes(), embeddings=embeddings if vectors else None)

    def _apply_changes(self, sections: dict[str, list[Any]]) -> None:
        copies = sections["slot_copies"]
        for source, destination in zip(copies[::2], copies[1::2], strict=True):
            self._tables[destination] = dict(self._tables[source])
            self._histories[destination] = self._histories[source]
        for index, slot in enumerate(sections["slot_inits"]):
            self._tables[slot] = {}
            start, end = sections["sampling_starts"][index : index + 2]
            sampling = msgspec.msgpack.decode(bytes(sections["sampling"][start:end]), type=Sampling)
            start, end = sections["history_starts"][index : index + 2]
            self._histories[slot] = sections["histories"][start:end]
            self._pooling = self._pooling | {slot} if sampling.pooling else self._pooling - {slot}
        changes = zip(sections["table_slots"], sections["table_indices"], sections["table_blocks"], strict=True)
        for slot, index, block in changes:
            self._tables[slot][index] = block
        copies = sections["block_copies"]
        for source, destination in zip(copies[::2], copies[1::2], strict=True):
            for offset in range(BLOCK_SIZE):
                if source * BLOCK_SIZE + offset in self._cache:
                    self._cache[destination * BLOCK_SIZE + offset] = self._cache[source * BLOCK_SIZE + offset]

    def _read(self, slot: int, length: int) -> list[int]:
        table = self._tables[slot]
        history = self._histories[slot]
        places = (table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in range(length))
        context = [self._cache[place] for place in places]
        assert not history or context[: len(history)] == history[:length], "its history is what it has computed"
        return context


def following(context: list[int], uniform: float) -> int:
    """The token after these."""
    return hash((tuple(context), uniform)) % NUM_ANSWERS
