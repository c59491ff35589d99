"""Engines that nobody closes: dropped, their processes, threads and memory go; a fork cannot use them, nor end them."""

import asyncio
import gc
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable

import psutil
import pytest

from pyllm import LLM, AsyncEngine, LLMEngine, SamplingParams
from pyllm.errors import EngineDeadError
from tests.waiting import until

SHORT = SamplingParams(temperature=0, max_tokens=2)


def children() -> set[int]:
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE}


def test_the_processes_of_a_dropped_llm_end_with_it(model: str) -> None:
    before, threads = children(), threading.active_count()
    llm = LLM(model)
    llm.generate("a", SHORT, use_tqdm=False)
    assert len(children() - before) >= 2, "a core and a worker"
    del llm
    # The loop's own threads end a moment after it.
    asyncio.run(until(lambda: not children() - before and threading.active_count() == threads, 0.05))


async def test_the_processes_of_a_dropped_async_engine_end(model: str) -> None:
    before = children()
    engine = AsyncEngine(model)
    await engine.start()
    _ = [output async for output in engine.generate("a", SHORT)]
    assert len(children() - before) >= 2, "a core and a worker"
    alive = weakref.ref(engine)
    del engine
    gc.collect()
    assert alive() is None
    (closing,) = (task for task in await after_a_turn() if task.get_name() == "close a dropped engine")
    await closing
    await until(lambda: not children() - before, 0.05)


async def after_a_turn() -> "set[asyncio.Task[object]]":
    await asyncio.sleep(0)
    return asyncio.all_tasks()


def test_a_dropped_llm_engine_ends_its_thread_also_beside_a_running_event_loop(model: str) -> None:
    async def drop(engine: list[LLMEngine]) -> None:
        engine.clear()
        gc.collect()

    threads = threading.active_count()
    engines = [LLMEngine(model)]
    engines[0].add_request("1", "a", SHORT)
    engines[0].step()
    assert threading.active_count() > threads
    alive = weakref.ref(engines[0])
    asyncio.run(drop(engines))
    assert alive() is None
    assert "model" not in {thread.name for thread in threading.enumerate()}


def in_a_fork(work: Callable[[], object]) -> str:
    """The error of what a forked child does."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  which is what is looked at
            answers.put(f"{type(error).__name__}: {error}")
        else:
            answers.put("")

    child = context.Process(target=run)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    return str(answers.get())


def test_a_fork_cannot_use_an_llm_nor_end_it(model: str) -> None:
    with LLM(model) as llm:
        said = in_a_fork(lambda: llm.generate("a", SHORT, use_tqdm=False))
        assert said.startswith(f"EngineDeadError: this LLM belongs to process {os.getpid()}, and this is process ")
        assert "make the LLM after the fork" in said
        assert not in_a_fork(llm.close)
        assert llm.generate("a", SHORT, use_tqdm=False)[0].finished


def test_a_fork_cannot_step_an_llm_engine(model: str) -> None:
    engine = LLMEngine(model)
    try:
        engine.add_request("1", "a", SHORT)
        assert f"this LLMEngine belongs to process {os.getpid()}" in in_a_fork(engine.step)
        assert not in_a_fork(engine.close)
        while engine.has_unfinished_requests():
            engine.step()
    finally:
        engine.close()


async def test_an_abort_may_be_awaited_as_vllms(model: str) -> None:
    engine = AsyncEngine(model)
    with pytest.raises(EngineDeadError, match="not running"):
        await engine.stats()
    await engine.abort("unknown")
    engine.abort(["unknown"])
