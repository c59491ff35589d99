"""The thread of a model in the core's own process. Runs calls in order; a GPU gets a step before the last is done.

Knows neither plans nor the computation of a step.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from pyllm.wire.messages import Sampled

_PAUSE = 20e-6  # seconds between two looks at a GPU


class Pending(Protocol):
    """A step that has begun."""

    def is_done(self) -> bool:
        """Whether `answer` would not wait."""

    def answer(self) -> Sampled:
        """Wait for the step's tokens."""


class _Task(NamedTuple):
    run: Callable[[], Any]
    is_step: bool
    result: "Future[Any]"


class ModelThread:
    """One thread, which runs until `end`. An exception of a call or step is set on its future."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def call(self, run: Callable[[], Any]) -> "Future[Any]":
        """Run this after all earlier calls and steps."""
        return self._add(run, is_step=False)

    def step(self, begin: Callable[[], Pending]) -> "Future[Sampled]":
        """Begin a step; the one before may still run on a GPU. The future has its answer."""
        return self._add(begin, is_step=True)

    def end(self, last: Callable[[], Any] | None = None) -> None:
        """Cancel calls and steps that have not begun; end after the others and `last`, even if that fails."""
        while True:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task.result.cancel()
        if last is not None:
            self.call(last)
        self._tasks.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most `timeout` seconds."""
        self._thread.join(timeout)

    def _add(self, run: Callable[[], Any], *, is_step: bool) -> "Future[Any]":
        task = _Task(run, is_step, Future())
        self._tasks.put(task)
        return task.result

    def _work(self) -> None:
        running: tuple[Pending, Future[Any]] | None = None

        def answer() -> None:
            nonlocal running
            if running is not None:
                (pending, result), running = running, None
                _settle(result, pending.answer)

        while True:
            if running is not None and running[0].is_done():
                answer()
            try:
                task = self._tasks.get(timeout=None if running is None else _PAUSE)
            except Empty:
                continue
            if task is None:
                answer()
                return
            if not task.result.set_running_or_notify_cancel():
                continue
            if not task.is_step:
                answer()
                _settle(task.result, task.run)
                continue
            try:
                begun = task.run()
            except BaseException as error:  # noqa: BLE001 - set on the step's future
                answer()
                task.result.set_exception(error)
            else:
                answer()
                running = begun, task.result


def _settle(result: "Future[Any]", run: Callable[[], Any]) -> None:
    try:
        value = run()
    except BaseException as error:  # noqa: BLE001 - set on the future
        result.set_exception(error)
    else:
        result.set_result(value)
