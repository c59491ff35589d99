import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from pyllm.core.executors.model_thread import ModelThread
from pyllm.wire.messages import Sampled

LATEST = 30  # seconds


class OnDevice:
    """A step that stays on the device until `ended` is set."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self._number, self._error = number, error
        self.ended = threading.Event()

    def is_done(self) -> bool:
        return self.ended.is_set()

    def answer(self) -> Sampled:
        assert self.ended.wait(LATEST)
        if self._error is not None:
            raise self._error
        return Sampled(self._number, b"", b"")


@pytest.fixture
def thread() -> Iterator[ModelThread]:
    thread = ModelThread()
    yield thread
    thread.end()
    thread.join()


def test_calls_run_in_order_and_raise_where_they_are_waited_for(thread: ModelThread) -> None:
    seen: list[int] = []
    first, failed, last = (thread.call(run) for run in (lambda: seen.append(1), lambda: 1 // 0, lambda: seen.append(2)))
    assert last.result(LATEST) is first.result(LATEST) is None
    assert seen == [1, 2]
    with pytest.raises(ZeroDivisionError):
        failed.result(LATEST)


def test_a_step_begins_while_a_device_computes_the_one_before(thread: ModelThread) -> None:
    steps = [OnDevice(number) for number in range(2)]
    begun = [threading.Event() for _ in steps]

    def begin(number: int) -> OnDevice:
        begun[number].set()
        return steps[number]

    first = thread.step(lambda: begin(0))
    assert begun[0].wait(LATEST)
    second = thread.step(lambda: begin(1))
    assert begun[1].wait(LATEST)
    assert not first.done()
    steps[0].ended.set()
    assert first.result(LATEST).step == 0
    assert not second.done()
    steps[1].ended.set()
    assert second.result(LATEST).step == 1


def test_a_step_is_answered_without_another_and_before_a_call(thread: ModelThread) -> None:
    step = OnDevice(3)
    answer = thread.step(lambda: step)
    step.ended.set()
    assert answer.result(LATEST).step == 3
    again = OnDevice(4)
    answer = thread.step(lambda: again)
    after = thread.call(answer.done)
    again.ended.set()
    assert after.result(LATEST) is True


def test_errors_are_those_of_their_steps(thread: ModelThread) -> None:
    wrong = OnDevice(0, RuntimeError("the device is gone"))
    first, second = thread.step(lambda: wrong), thread.step(lambda: OnDevice(1 // 0))
    wrong.ended.set()
    with pytest.raises(RuntimeError, match="the device is gone"):
        first.result(LATEST)
    with pytest.raises(ZeroDivisionError):
        second.result(LATEST)


def test_the_end_cancels_what_has_not_begun() -> None:
    thread, step, begun = ModelThread(), OnDevice(0), threading.Event()

    def begin() -> OnDevice:
        begun.set()
        assert step.ended.wait(LATEST)
        return step

    running, waiting = thread.step(begin), thread.call(lambda: None)
    assert begun.wait(LATEST)
    last: list[str] = []
    thread.end(lambda: last.append("closed"))
    step.ended.set()
    thread.join()
    assert last == ["closed"]
    assert running.result(LATEST).step == 0
    with pytest.raises(CancelledError):
        waiting.result(LATEST)
