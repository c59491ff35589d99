"""The processes of a catalogue's models: each model is loaded while it is wanted, within bounds of memory and number.

Decides the order alone: the API process says which models are wanted. Knows no file, and cores only as processes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pyllm.config.process_config import ApiConfig, CoreConfig, ModelNews
from pyllm.errors import ConfigError, PyllmError
from pyllm.launch.topology import SupervisedEngine
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.server_processes import STOP_GRACE, last_of
from pyllm.supervision.spare import Spare
from pyllm.supervision.supervised_process import OnLost, SupervisedProcess
from pyllm.wire.messages import Restarts

logger = logging.getLogger(__name__)


class LoadableModel(msgspec.Struct, frozen=True):
    """A model whose files have been read: its cores, what an API process needs, and its bytes of memory."""

    cores: list[CoreConfig]
    api: ApiConfig
    num_bytes: int


class MemoryRoom:
    """Room for models, given in the order of their wishes: a small model does not overtake a large one.

    `budget` is in bytes; `max_models` 0: no bound.
    """

    def __init__(self, budget: int, max_models: int) -> None:
        self.budget = budget
        self.max_models = max_models
        self._held: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, int, asyncio.Future[None]]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the models that have room."""
        return sum(self._held.values())

    async def enter(self, name: str, wish: int, num_bytes: int) -> None:
        """Wait for room, behind those of earlier wishes.

        Raises:
            ConfigError: the model takes more than the whole budget.
        """
        if num_bytes > self.budget:
            raise ConfigError(
                f"it takes {num_bytes / 1e9:.2f} GB of {self.budget / 1e9:.2f} GB for all models (--memory-budget): "
                "raise that, or give the model a smaller --kv-cache-memory-bytes or fewer bits"
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting[name] = wish, num_bytes, future
        self._give()
        try:
            await future
        finally:
            if self._waiting.pop(name, None) is not None and (future.cancelled() or not future.done()):
                self._give()

    def leave(self, name: str) -> None:
        """Give the room back, if the model has any."""
        self._held.pop(name, None)
        self._give()

    def _give(self) -> None:
        for name, (_, num_bytes, future) in sorted(self._waiting.items(), key=lambda item: item[1][0]):
            if future.done():
                continue
            is_full = bool(self.max_models) and len(self._held) >= self.max_models
            if is_full or self.num_bytes + num_bytes > self.budget:
                return
            self._held[name] = num_bytes
            future.set_result(None)


class ModelProcesses:
    """The models by name. `read` reads a model's files, on a thread; `supervise` makes its processes.

    `on_news` is called when the news of a model have changed. `pinned` models are loaded at start; a server is ready
    when each of them is loaded or has failed. `spares` are for the cores of all models.
    """

    def __init__(
        self,
        names: Iterable[str],
        read: Callable[[str], LoadableModel],
        supervise: Callable[[list[CoreConfig]], SupervisedEngine],
        room: MemoryRoom,
        *,
        spares: Spare | None = None,
        pinned: Sequence[str] = (),
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_news = on_news
        self._read = read
        self._supervise = supervise
        self._room = room
        self._spares = spares
        self._pinned = tuple(pinned)
        self._news = {name: ModelNews(name=name) for name in names}
        self._runs: dict[str, _Run] = {}
        self._wanted: dict[str, int] = {}
        self._is_ending = False

    @property
    def news(self) -> tuple[ModelNews, ...]:
        """The news of each model."""
        return tuple(self._news.values())

    @property
    def wanted(self) -> dict[str, int]:
        """The models that are wanted; see `CatalogueChoices`."""
        return self._wanted

    @property
    def last_wish(self) -> int:
        """The highest number of a wish so far; -1 before the first."""
        return max((*self._wanted.values(), *(news.wish for news in self._news.values())))

    @property
    def restarts(self) -> tuple[Restarts, ...]:
        """The restarts of all children."""
        return tuple(restarts for process in self._processes for restarts in process.restarts)

    @property
    def children(self) -> list[ChildProcess]:
        """The children of all models."""
        return [child for process in self._processes for child in process.children]

    def want(self, wanted: Mapping[str, int]) -> None:
        """Load these models, in their order, each once for a wish of this number; unload those of other wishes.

        An unknown name is ignored.
        """
        self._wanted = {name: wish for name, wish in wanted.items() if name in self._news}
        for name, run in self._runs.items():
            if self._wanted.get(name) != run.wish:
                run.unwanted.set()
        self._begin_wanted()

    def spawn(self) -> None:
        """Nothing: models are loaded on the event loop."""

    async def start(self, on_lost: OnLost) -> str:
        """Load the pinned models, and wait until each is loaded or has failed. No model's end is the server's."""
        del on_lost
        self.want(dict.fromkeys(self._pinned, 0) | self._wanted)
        for name in self._pinned:
            if (run := self._runs.get(name)) is not None:
                await run.settled.wait()
        return ""

    def stand_by(self) -> None:
        """Keep a spare core from now on."""
        if self._spares is not None:
            self._spares.fill()

    def expect_end(self) -> None:
        """Load nothing more, and accept that children end."""
        self._is_ending = True
        for process in self._processes:
            process.expect_end()

    def give_up(self, reason: str) -> None:
        """Tell the children that a process they need will not come back."""
        for process in self._processes:
            process.give_up(reason)

    def kill(self) -> None:
        """Send SIGKILL to all children."""
        self._is_ending = True
        for process in self._processes:
            process.kill()
        if self._spares is not None:
            self._spares.kill()
        self.want({})

    async def stop(self, grace: float) -> None:
        """Unload all models, within `grace` seconds."""
        self._is_ending = True
        for run in self._runs.values():
            run.grace = grace
        self.want({})
        if self._spares is not None:
            await self._spares.close()
        if tasks := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(tasks)

    @property
    def _processes(self) -> list[SupervisedProcess]:
        return [process for run in self._runs.values() for process in run.processes]

    def _begin_wanted(self) -> None:
        for name, wish in self._wanted.items():
            if name not in self._runs and self._news[name].wish != wish and not self._is_ending:
                run = self._runs[name] = _Run(wish)
                self._tell(name, stage="reading", wish=wish, reason="")
                run.task = asyncio.create_task(self._run(name, run), name=f"model {name}")
                run.task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, _: "asyncio.Task[None]") -> None:
        del self._runs[name]
        self._begin_wanted()

    async def _run(self, name: str, run: "_Run") -> None:
        reason = ""
        try:
            await run.until_unwanted(self._load(name, run))
        except (PyllmError, OSError) as error:
            reason = str(error) or type(error).__name__
        except Exception as error:
            logger.exception("the model %s", name)
            reason = f"{type(error).__name__}: {error}"
        if run.processes:
            self._tell(name, stage="unloading")
            for process in run.processes:
                process.expect_end()
            await asyncio.gather(*(process.stop(run.grace) for process in run.processes))
            run.processes = ()
        self._room.leave(name)
        if reason:
            logger.error("the model %s is not served: %s", name, reason)
        else:
            logger.info("the model %s is unloaded", name)
        self._tell(name, stage="failed" if reason else "unloaded", reason=reason)
        run.settled.set()

    async def _load(self, name: str, run: "_Run") -> None:
        """Load a model, and wait for its end, which is an error."""
        model = await asyncio.to_thread(self._read, name)
        self._tell(name, stage="waiting", num_bytes=model.num_bytes, api=model.api)
        await self._room.enter(name, run.wish, model.num_bytes)
        self._tell(name, stage="loading")
        engine = self._supervise(model.cores)
        run.processes = tuple(process for group in engine for process in group)
        lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def lose(reason: BaseException) -> None:
            if not lost.done():
                lost.set_result(reason)

        lose_core = last_of(len(engine.cores), lose)
        for process in run.processes:
            process.spawn()
        await asyncio.gather(
            *(process.start(lose_core if process in engine.cores else lose) for process in run.processes)
        )
        self._tell(name, stage="loaded")
        logger.info("the model %s is loaded: %.2f GB", name, model.num_bytes / 1e9)
        run.settled.set()
        for process in run.processes:
            process.stand_by()
        self.stand_by()
        raise await lost

    def _tell(self, name: str, **changes: Any) -> None:
        self._news[name] = msgspec.structs.replace(self._news[name], **changes)
        self.on_news()


class _Run:
    """One model from the wish for it to its end. `settled`: it is loaded, or has ended."""

    def __init__(self, wish: int) -> None:
        self.wish = wish
        self.task: asyncio.Task[None] | None = None
        self.processes: tuple[SupervisedProcess, ...] = ()
        self.unwanted = asyncio.Event()
        self.settled = asyncio.Event()
        self.grace = STOP_GRACE

    async def until_unwanted(self, work: Any) -> None:
        """Run `work`, which ends with an error only, until the model is unwanted."""
        working = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(self.unwanted.wait())
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if working.done():
            working.result()
        working.cancel()
        await asyncio.wait({working})
