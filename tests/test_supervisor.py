import asyncio
import os
import select
import signal
import subprocess
import sys
from multiprocessing import Pipe

import pytest

from pyllm.child import ORPHANED_EXIT_CODE
from pyllm.errors import StartError
from pyllm.supervisor import Process

CHILD = """
import os, signal, sys, threading
from multiprocessing.connection import Connection
from pyllm.child import attach
child = attach(Connection(int(sys.argv[1])), "pyllm::test", parent_death_signal=False)
"""
SERVE = (
    CHILD
    + """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
child.enter("loading")
child.started("somewhere")
threading.Event().wait()
"""
)
STUCK = CHILD + 'child.enter("loading weights"); threading.Event().wait()'
STUBBORN = CHILD + "signal.signal(signal.SIGTERM, signal.SIG_IGN); child.started(); threading.Event().wait()"
FAILING = CHILD + 'child.enter("loading weights"); child.failed("no memory"); sys.exit(3)'


def start(code: str) -> Process:
    ours, theirs = Pipe()
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    process = Process("the child", child.pid, ours, child.poll)
    process.watch()
    return process


async def test_child_becomes_ready_and_stops() -> None:
    process = start(SERVE)
    assert await process.ready(30.0) == "somewhere"
    assert process.stage == "ready"
    assert await process.stop(30.0) == 0


async def test_late_child_is_named_with_its_stage() -> None:
    process = start(STUCK)
    while process.stage != "loading weights":
        await asyncio.sleep(0)
    with pytest.raises(StartError, match=r"the child was not ready after 0 s: it was still loading weights"):
        await process.ready(0.0)
    assert await process.stop(30.0) == -signal.SIGTERM


async def test_failed_child_tells_stage_code_and_reason() -> None:
    process = start(FAILING)
    with pytest.raises(StartError, match=r"exited with code 3 while loading weights: no memory"):
        await process.ready(30.0)


async def test_stubborn_child_is_killed_after_its_grace() -> None:
    process = start(STUBBORN)
    await process.ready(30.0)
    assert await process.stop(0.0) == -signal.SIGKILL


async def test_killed_child_has_an_obituary() -> None:
    process = start(SERVE)
    await process.ready(30.0)
    process.signal(signal.SIGKILL)
    assert await process.exited == -signal.SIGKILL
    assert process.obituary() == "the child was killed by SIGKILL while ready"
    process.signal(signal.SIGTERM)  # a signal to a dead child is not an error


async def test_descriptors_are_returned() -> None:
    before = len(os.listdir("/proc/self/fd"))
    process = start(SERVE)
    await process.ready(30.0)
    await process.stop(30.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_child_ends_at_the_end_of_its_parents_connection() -> None:
    ours, theirs = Pipe()
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", SERVE, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    ours.recv_bytes()
    ours.close()
    assert child.wait(30.0) == ORPHANED_EXIT_CODE


def test_child_ends_when_the_parent_is_killed() -> None:
    """With the parent-death signal as with the connection alone: the grandchild's process id disappears."""
    parent_code = f"""
import signal, subprocess, sys
from multiprocessing import Pipe
ours, theirs = Pipe()
child = subprocess.Popen([sys.executable, "-c", {SERVE!r}, str(theirs.fileno())], pass_fds=[theirs.fileno()])
theirs.close()
ours.recv_bytes()
print(child.pid, flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    ended = wait_readable(grandchild, 30.0)
    os.close(grandchild)
    assert ended


def wait_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
