"""What a core writes while it works, read back by a fresh process."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pyllm.core.replay import replay_file
from pyllm.errors import ConfigError, PyllmError
from pyllm.recording import PART_BYTES, Recording
from pyllm.wire.messages import Abort, FinishCode
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine


def replay_elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyllm", "replay", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def eventful(path: Path, policy: str = "priority") -> Engine:
    """A core with overlap and too few blocks, through all that can happen to a request."""
    engine = Engine(
        CountingExecutor(num_blocks=24), depth=2, recording=path, scheduling_policy=policy, max_pinned_blocks=2
    )
    engine.submit(1, list(range(10)), max_tokens=12, n=3, priority=1)
    await engine.core.step()
    engine.scheduler.lose_device()  # The first tokens of three samples wait for nothing that is in flight.
    for request in range(2, 9):
        engine.now += 0.25
        engine.submit(
            request,
            list(range(request, request + 3 * request)),
            max_tokens=20,
            priority=-(request % 3),
            tenant=f"tenant-{request % 2}",
            timeout=2.0 if request == 5 else None,
            ttft_target=0.5,
        )
        await engine.core.step()
    engine.call("pin", 1, bytes(4 * 8))
    engine.receive(Abort(EPOCH, 3))
    engine.receive(Abort(EPOCH, 1, 1))
    engine.core.beat()
    engine.scheduler.hold(0, 6, "compiling a grammar")
    engine.call("reconfigure", {"scheduling_policy": "fair", "tenant_weights": {"tenant-1": 3}})
    for _ in range(5):
        engine.now += 0.25
        await engine.core.step()
    engine.scheduler.release(0, 6, "compiling a grammar")
    engine.call("reconfigure", {"scheduling_policy": "shortest"})
    engine.call("reset_prefix_cache")
    await engine.run_dry()
    return engine


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest", "fair"])
async def test_a_fresh_process_decides_the_same(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "recording"
    engine = await eventful(path, policy)
    outputs = engine.outputs_by_sample()
    assert {finish for _, finish in outputs.values()} == {FinishCode.LENGTH, FinishCode.ABORT, FinishCode.DEADLINE}
    engine.core.close()
    here = replay_file(path)
    stats = engine.scheduler.stats()
    assert (here["stats"], here["is_truncated"]) == (stats, False)
    assert stats["num_preemptions"] > 0
    assert here["num_steps"] == stats["num_steps"] > 20
    there = replay_elsewhere(path)
    assert (there.returncode, there.stderr) == (0, "")
    assert json.loads(there.stdout) == here


async def test_a_beat_writes_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = Engine(recording=path)
    engine.submit(1, [1, 2], max_tokens=2)
    await engine.run_dry()
    engine.core.beat()
    engine.core.close()
    engine.core.close()
    assert replay_file(path)["num_steps"] == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_recording_that_was_cut_off_replays_to_there(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = await eventful(path)
    engine.core.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    replayed = replay_file(path)
    assert replayed["is_truncated"]
    assert replayed["num_steps"] <= engine.scheduler.stats()["num_steps"]


async def test_another_decision_is_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = Engine(recording=path)
    engine.submit(1, [901, 902, 903], max_tokens=3)
    await engine.run_dry()
    engine.core.close()
    recording = bytearray(path.read_bytes())
    token = recording.index(b"\x8a\x0e\x8c\x0e\x8e\x0e")  # the prompt, as zigzag varints
    recording[token] += 2
    path.write_bytes(recording)
    replayed = replay_elsewhere(path)
    assert (replayed.returncode, replayed.stdout) == (1, "")
    assert "entry 1 of the recording: the decisions differ: hash" in replayed.stderr
    assert "Traceback" not in replayed.stderr


@pytest.mark.parametrize(
    ("contents", "text"),
    [(b"", "is no recording: give a file that"), (None, "cannot read")],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, contents: bytes | None, text: str) -> None:
    path = tmp_path / "recording"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(PyllmError, match=text):
        replay_file(path)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        Recording(path, bytes)
    with pytest.raises(ConfigError, match="there is no folder"):
        Recording(tmp_path / "nowhere" / "recording", bytes)
    assert path.read_text() == "precious"


def test_much_is_written_without_being_asked(tmp_path: Path) -> None:
    parts = [bytes([index]) * (PART_BYTES // 2) for index in range(40)]
    waiting = iter(parts)
    path = tmp_path / "recording"
    recording = Recording(path, lambda: next(waiting, b""))
    for _ in parts:
        recording.gather()
        assert recording.num_gathered < PART_BYTES
    recording.close()
    assert path.read_bytes() == b"".join(parts)


def test_replaying_needs_neither_torch_nor_zmq() -> None:
    code = "import sys, pyllm.cli, pyllm.core.replay\nprint(sorted({'torch', 'zmq', 'numpy'} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
