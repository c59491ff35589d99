"""Gives a core's memory back while its engine sleeps, and takes it again: the KV cache, and the weights.

A sleeping core is paused. Knows no requests and no files.
"""

import asyncio
from collections.abc import Sequence

from pyllm._rust import Scheduler
from pyllm.core.executors.executor import Executor
from pyllm.core.kv.cache_sizes import CacheSizes
from pyllm.core.pausing import Pausing
from pyllm.errors import EngineDeadError, RequestError, WorkerDeadError
from pyllm.wire.messages import PauseMode

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)  # vLLM's
LEVELS = (1, 2)


class Sleeping:
    """`refusal` says why this engine cannot sleep, and is empty if it can. `on_device`: whether it computes on a GPU.

    `changing` is held by whatever changes the memory of the ranks.

    On a GPU level 1 drops the weights, too: the machine's memory keeps their files, from where they are loaded again.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        pausing: Pausing,
        *,
        changing: asyncio.Lock,
        refusal: str,
        on_device: bool,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._pausing = pausing
        self._changing = changing
        self._refusal = refusal
        self._on_device = on_device
        self._asleep: set[str] = set()  # of `TAGS`

    @property
    def is_sleeping(self) -> bool:
        """Whether some of the memory was given back."""
        return bool(self._asleep)

    def stats(self) -> dict[str, int]:
        """Whether the core sleeps, and whether it does so without weights: 1 or 0."""
        return {"num_sleeping": int(self.is_sleeping), "num_without_weights": int(WEIGHTS in self._asleep)}

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause, forget all keys and values, and give the memory of the KV cache back; at level 2 the weights', too.

        Raises:
            RequestError: this engine cannot sleep, or was resumed meanwhile.
        """
        if self._refusal:
            raise RequestError(self._refusal)
        if level not in LEVELS:
            raise RequestError(f"level must be 1 or 2, got {level}", "level")
        await self._pausing.pause(mode)
        async with self._changing:
            if not self._pausing.is_paused:
                raise RequestError("the engine was resumed before it slept")
            self._scheduler.lose_device()  # Running requests are computed again after the sleep.
            self._asleep |= {KV_CACHE} if level == 1 and not self._on_device else {*TAGS}
            await self._put_to_sleep()

    async def wake_up(self, tags: Sequence[str] | None) -> None:
        """Take the memory again, all of it or that of some `TAGS`; with all of it, generation goes on.

        Raises:
            RequestError: there is no such tag, or there is too little memory.
        """
        if unknown := [tag for tag in tags or () if tag not in TAGS]:
            raise RequestError(f"tags are {' and '.join(TAGS)}, got {unknown[0]!r:.80}", "tags")
        async with self._changing:
            await self._wake_up([tag for tag in TAGS if tag in self._asleep and (not tags or tag in tags)])

    def check_awake(self) -> None:
        """Refuse a call that would let requests run.

        Raises:
            RequestError: the engine sleeps.
        """
        if self._asleep:
            raise RequestError("the engine sleeps: use wake_up, which resumes it")

    async def _wake_up(self, wanted: Sequence[str]) -> None:
        try:
            if WEIGHTS in wanted:
                await self._executor.collective("wake_weights")
                self._asleep.discard(WEIGHTS)
            if KV_CACHE in wanted:
                await self._executor.collective("allocate", *CacheSizes.of(self._scheduler))
                self._asleep.discard(KV_CACHE)
        except WorkerDeadError as error:
            raise RequestError(f"the workers died meanwhile: {error}; try again") from None
        except EngineDeadError as error:
            await self._put_to_sleep()  # Other ranks may be awake.
            raise RequestError(f"the engine sleeps on: {error}") from None
        if not self._asleep:
            self._pausing.resume()

    def weights_loaded(self) -> None:
        """Note that the ranks have got weights, as other ones have replaced those before."""
        self._asleep.discard(WEIGHTS)

    async def restore(self) -> None:
        """Put new ranks to sleep like those before them.

        Raises:
            WorkerDeadError: a rank has died.
        """
        if self._asleep:
            await self._executor.collective("sleep", WEIGHTS in self._asleep)

    async def _put_to_sleep(self) -> None:
        try:
            await self._executor.collective("sleep", WEIGHTS in self._asleep)
        except WorkerDeadError:
            return  # `restore` puts the next ones to sleep.
