import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe

import msgspec
import psutil
import pytest

from pyllm.errors import ConfigError, StartError
from pyllm.supervision import child_process, log_level
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import FINAL_EXIT_CODE, ORPHANED_EXIT_CODE
from pyllm.supervision.process_handle import PidfdHandle, ProcessHandle, WaitedHandle, child_handle
from pyllm.wire.messages import Heartbeat
from pyllm.wire.supervision_messages import Kept
from tests.waiting import until

HandleOf = Callable[[int], ProcessHandle]

CHILD = """
import ctypes, os, signal, subprocess, sys, threading, time
from multiprocessing.connection import Connection
from pyllm.supervision.parent_link import attach, await_configuration
def attached(**options):
    return attach(Connection(int(sys.argv[1])), "pyllm::test", **options)
"""
ATTACHED = CHILD + "child = attached()\n"
SERVE = (
    ATTACHED
    + """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
child.enter("loading")
child.started("somewhere")
threading.Event().wait()
"""
)
STUCK = ATTACHED + 'child.enter("loading weights"); threading.Event().wait()'
STUBBORN = ATTACHED + "signal.signal(signal.SIGTERM, signal.SIG_IGN); child.started(); threading.Event().wait()"
FAILING = ATTACHED + 'child.enter("loading weights"); child.failed("no memory"); sys.exit(3)'
BLAMING = (
    ATTACHED
    + "child.started()\nfor blamed in {}: child.set_blamed_on_request(blamed)\nos.kill(os.getpid(), signal.SIGKILL)"
)
WRITING = CHILD + "os.pwrite(int(sys.argv[2]), b'end', 2); os.kill(os.getpid(), signal.SIGKILL)"

# Holds the interpreter, so that no thread of it runs on.
HANGING = ATTACHED + "child.started()\nwhile True: ctypes.PyDLL(None).pause()"
# Its event loop runs no more, but its threads do.
PULSELESS = CHILD + "child = attached(pulse_patience=0.5); child.started(); child.pulse(); threading.Event().wait()"
WITH_CHILD = ATTACHED + "child.started(str(subprocess.Popen(['sleep', '600']).pid)); threading.Event().wait()"
STEPPING = ATTACHED + "child.step = 41; child.progress = 0.5; child.enter('stepping'); threading.Event().wait()"
KEEPING = (
    ATTACHED
    + """
from pyllm.wire.supervision_messages import Kept
child.started()
child.keep(Kept(settings={"watermark": 0.5}))
os.kill(os.getpid(), signal.SIGKILL)
"""
)
FOLLOWING = (
    ATTACHED
    + """
import logging
while logging.getLogger().level != logging.ERROR: time.sleep(0.01)
child.started()
threading.Event().wait()
"""
)
UNCONFIGURED = CHILD + (
    "connection = Connection(int(sys.argv[1]))\n"
    "size = len(await_configuration(connection))\n"
    "attach(connection, 'pyllm::test').started(str(size)); threading.Event().wait()"
)
LISTENING = ATTACHED + (
    "while child.parent_silence < 1: time.sleep(0.01)\n"
    "os.kill(os.getpid(), signal.SIGSTOP)\n"
    "while child.parent_silence >= 1: time.sleep(0.01)\n"
    "child.started()\n"
    "while not child.given_up: time.sleep(0.01)\n"
    "child.failed(child.given_up); sys.exit(1)"
)
TALKING = ATTACHED + "sys.stderr.write('one\\n' + 'x' * 100_000 + 'end'); sys.stderr.flush(); os._exit(0)"


def start(
    code: str,
    watched: bool = True,
    memory: int | None = None,
    count_oom_kills: Callable[[], int] = lambda: 0,
    handle_of: HandleOf = child_handle,
) -> ChildProcess:
    ours, theirs = Pipe()
    log, stderr = os.pipe()
    with theirs, os.fdopen(stderr, "wb"):
        files = [theirs.fileno()] if memory is None else [theirs.fileno(), memory]
        command = [sys.executable, "-c", code, *map(str, files)]
        child = subprocess.Popen(command, pass_fds=files, stderr=stderr, process_group=0)
    process = ChildProcess(
        "the child",
        child.pid,
        ours,
        child.poll,
        log,
        handle=handle_of(child.pid),
        memory=memory,
        count_oom_kills=count_oom_kills,
    )
    if watched:
        process.watch()
    return process


# A child is followed and signalled alike where a sandbox refuses pidfds.
both_ways = pytest.mark.parametrize("handle_of", [child_handle, WaitedHandle])


@both_ways
async def test_child_becomes_ready_and_stops(handle_of: HandleOf) -> None:
    process = start(SERVE, handle_of=handle_of)
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


@both_ways
async def test_failed_child_tells_stage_code_and_reason(handle_of: HandleOf) -> None:
    process = start(FAILING, handle_of=handle_of)
    with pytest.raises(StartError, match=r"exited with code 3 while loading weights: no memory"):
        await process.ready(30.0)


@both_ways
async def test_stubborn_child_is_killed_after_its_grace(handle_of: HandleOf) -> None:
    process = start(STUBBORN, handle_of=handle_of)
    await process.ready(30.0)
    assert await process.stop(0.0) == -signal.SIGKILL


@both_ways
async def test_killed_child_has_an_exit_summary(handle_of: HandleOf) -> None:
    process = start(SERVE, handle_of=handle_of)
    await process.ready(30.0)
    process.signal(signal.SIGKILL)
    assert await process.exited == -signal.SIGKILL
    assert process.exit_summary() == "the child was killed by SIGKILL while ready"
    # What is sent to a dead child is no error.
    process.signal(signal.SIGTERM)
    process.kill()
    process.give_up("too late")
    process.configure(Heartbeat())


@both_ways
async def test_signals_without_a_name_have_their_number(handle_of: HandleOf) -> None:
    process = start(SERVE, handle_of=handle_of)
    await process.ready(30.0)
    os.kill(process.pid, signal.SIGRTMIN + 6)
    assert await process.exited == -signal.SIGRTMIN - 6
    assert process.exit_summary() == f"the child was killed by signal {signal.SIGRTMIN + 6} while ready"


async def test_what_a_child_has_kept_is_known_before_its_end() -> None:
    process = start(KEEPING)
    kept: list[Kept] = []
    process.on_kept = kept.append
    assert await process.exited == -signal.SIGKILL
    assert kept == [Kept(settings={"watermark": 0.5})]


async def test_a_child_logs_as_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_level, "_changed", "ERROR")
    process = start(FOLLOWING)
    await process.ready(30.0)
    await process.stop(30.0)


async def test_the_last_step_of_a_child_is_in_its_exit_summary() -> None:
    process = start(STEPPING)
    await until(lambda: process.step >= 0)
    process.kill()
    await process.exited
    assert process.exit_summary() == "the child was killed by SIGKILL while stepping, at step 41 or later"


async def test_a_child_that_the_kernel_ended_for_want_of_memory_is_said_to_be_one() -> None:
    ended: list[psutil.Process] = []
    process = start(SERVE, count_oom_kills=lambda: 3 + (bool(ended) and not ended[0].is_running()))
    ended.append(psutil.Process(process.pid))
    await process.ready(30.0)
    process.signal(signal.SIGKILL)
    await process.exited
    assert process.exit_summary().endswith("while ready: probably by the kernel, for want of memory")


async def test_silent_children_are_ended_and_a_slow_start_is_not_silence() -> None:
    stopped, stopped_early, hanging, pulseless, loading = map(start, (SERVE, STUCK, HANGING, PULSELESS, STUCK))
    for process in (stopped, hanging, pulseless):
        await process.ready(30.0)
    while stopped_early.stage != "loading weights":
        await asyncio.sleep(0)
    stopped.signal(signal.SIGSTOP)
    stopped_early.signal(signal.SIGSTOP)
    for process in (stopped, stopped_early, hanging, pulseless):
        code = await process.exited
        # To write the stacks of threads that run may end a process before the kill does (faulthandler).
        writes_stacks = process in (hanging, pulseless)
        assert code == -signal.SIGKILL or (writes_stacks and code == -signal.SIGSEGV)
        assert process.silent
        assert process.exit_summary().endswith("it gave no sign of life for 2.5 s")
    for process in (hanging, pulseless):
        assert b"in <module>" in process.log  # Who could still write its stacks has done so.
    assert not loading.exited.done()
    assert not loading.silent
    assert await loading.stop(30.0) == -signal.SIGTERM


@both_ways
@pytest.mark.parametrize("end", [ChildProcess.kill, lambda process: os.kill(process.pid, signal.SIGKILL)])
async def test_what_a_child_has_started_goes_with_it(end: Callable[[ChildProcess], None], handle_of: HandleOf) -> None:
    process = start(WITH_CHILD, handle_of=handle_of)
    grandchild = psutil.Process(int(await process.ready(30.0)))
    end(process)
    assert await process.exited == -signal.SIGKILL
    await asyncio.to_thread(grandchild.wait, 30.0)


async def test_a_configuration_of_any_size_is_sent_without_waiting() -> None:
    class Config(msgspec.Struct):
        text: str

    process = start(UNCONFIGURED, watched=False)
    os.kill(process.pid, signal.SIGSTOP)
    config = Config("x" * 3_000_000)  # far more than a socket takes
    process.configure(config)
    process.watch()
    process.signal(signal.SIGCONT)
    assert await process.ready(30.0) == str(len(msgspec.msgpack.encode(config)))
    await process.stop(0.0)


async def test_a_child_hears_its_parent_and_notices_its_silence() -> None:
    process = start(LISTENING, watched=False)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.watch()
    process.signal(signal.SIGCONT)
    await process.ready(30.0)
    process.give_up("all is lost")
    assert await process.exited == 1
    assert process.exit_summary().endswith("all is lost")


async def test_the_end_of_what_a_child_writes_is_kept() -> None:
    process = start(TALKING)
    assert await process.exited == 0
    assert process.log == b"x" * ((64 << 10) - 3) + b"end"


@pytest.mark.parametrize(
    ("error", "code"), [("ConfigError", FINAL_EXIT_CODE), ("GivenUpError", FINAL_EXIT_CODE), ("StartError", 1)]
)
async def test_an_error_that_another_process_would_meet_has_a_code_of_its_own(error: str, code: int) -> None:
    fail = f"def fail(): raise errors.{error}('no')\n"
    process = start(ATTACHED + "from pyllm import errors\n" + fail + "sys.exit(child.run(fail))")
    assert await process.exited == code
    assert process.failure == "no"


@pytest.mark.parametrize(("error", "is_setting"), [("ConfigError", True), ("GivenUpError", False), ("OSError", False)])
async def test_a_setting_that_a_child_finds_wrong_is_told_as_such(error: str, is_setting: bool) -> None:
    raises = f"def fail(): raise {'' if error == 'OSError' else 'errors.'}{error}('watermark is wrong')\n"
    process = start(ATTACHED + "from pyllm import errors\n" + raises + "sys.exit(child.run(fail))")
    with pytest.raises(StartError) as told:
        await process.ready(60)
    assert isinstance(told.value, ConfigError) == is_setting
    assert (str(told.value) == "watermark is wrong") == is_setting


@pytest.mark.parametrize("told", [[], [True], [True, False], [False, True, True]])
async def test_what_a_child_said_of_its_end_last_is_known_after_it(told: list[bool]) -> None:
    process = start(BLAMING.format(told))
    assert await process.exited == -signal.SIGKILL
    assert process.blamed_on_request == bool(told and told[-1])


async def test_what_a_child_left_in_its_memory_is_known_after_its_end() -> None:
    memory = os.memfd_create("memory")
    os.ftruncate(memory, 8)
    process = start(WRITING, memory=memory)
    assert await process.exited == -signal.SIGKILL
    assert process.memory == b"\0\0end\0\0\0"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)


async def test_the_exit_code_of_what_another_process_reaps_is_told_or_taken_for_a_kill() -> None:
    for code, told in ((3, 3), (None, -signal.SIGKILL)):
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", ATTACHED + "child.started(); sys.exit(9)", str(theirs.fileno())]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        handle = PidfdHandle(child.pid, os.pidfd_open(child.pid))
        process = ChildProcess("the child", child.pid, ours, lambda: None, handle=handle)
        process.watch()
        assert await asyncio.to_thread(child.wait) == 9
        process.kill()  # There is nobody any more.
        if code is not None:
            process.tell_code(code)
        assert await process.exited == told
        process.tell_code(5)  # too late


@both_ways
async def test_descriptors_are_returned(handle_of: HandleOf) -> None:
    before = len(os.listdir("/proc/self/fd"))
    process = start(SERVE, handle_of=handle_of)
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


def test_a_child_that_is_left_is_killed_without_an_event_loop() -> None:
    before = os.listdir("/proc/self/fd")
    process = child_process.spawn("a spare", "worker", memory_size=1)
    handle = os.pidfd_open(process.pid)
    process.abandon()
    ended = wait_readable(handle, 30.0)
    os.close(handle)
    assert ended
    assert os.listdir("/proc/self/fd") == before
