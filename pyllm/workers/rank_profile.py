"""A profile of a rank's next steps: ops of Rust from `OpTimes`, torch's ops and GPU kernels from `TorchRecorder`.

Knows no model and no socket. Use it on the thread that runs the steps, as both recorders see only that thread.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from pyllm_kernels import OpTimes

from pyllm.wire.messages import Sampled, Step
from pyllm.wire.plan_layout import PLAN_SECTIONS
from pyllm.wire.profiles import MAX_TRACE_EVENTS, OpKind, OpTime, RankProfile, RankTimes
from pyllm.workers.devices.device import Device
from pyllm.workers.trace_events import Span, StepSpan, Track, chrome_events, self_times

if TYPE_CHECKING:
    from pyllm.workers.torch_recorder import TorchRecorder

_NAMES = [name for name, _ in PLAN_SECTIONS]
_TOKENS, _ROWS = _NAMES.index("tokens"), _NAMES.index("slots")


class Pending(Protocol):
    """A step that has begun."""

    def is_done(self) -> bool:
        """Whether `answer` would not wait."""

    def answer(self) -> Sampled:
        """Wait for the step's tokens."""


class StepProfiler:
    """Records the next `num_steps` steps; a step that raises ends it. `clock` returns nanoseconds of Unix time.

    While `takes_steps` is true, begin each step with `run`. `finish` returns the profile.
    """

    def __init__(self, num_steps: int, device: Device, clock: Callable[[], int] = time.time_ns) -> None:
        self.takes_steps = True
        self._num_left = num_steps
        self._num_running = 0
        self._clock = clock
        self._steps: list[StepSpan] = []
        self._rust = OpTimes(MAX_TRACE_EVENTS)
        self._torch = _torch_recorder(device)
        self._rust.begin()
        self._is_recording = True

    def run(self, step: Step, begin: Callable[[], Pending]) -> Pending:
        """Begin a step. The recorders stop when the last one is answered."""
        began = self._clock()
        try:
            pending = begin()
        except BaseException:
            self.stop()
            raise
        self._num_left -= 1
        self._num_running += 1
        self.takes_steps = self._num_left > 0

        def end() -> None:
            start = max(began, self._steps[-1].end) if self._steps else began
            counts = step.counts[_TOKENS], step.counts[_ROWS]
            self._steps.append(StepSpan(step.step, *counts, start, max(start, self._clock())))
            self._num_running -= 1
            if not self._num_running and not self.takes_steps:
                self.stop()

        return _RecordedStep(pending, end)

    def stop(self) -> None:
        """Stop recording; may be called again."""
        if self._is_recording:
            self._is_recording = self.takes_steps = False
            self._rust.end()
            if self._torch is not None:
                self._torch.stop()

    def finish(self, rank: int, origin: int, *, with_trace: bool) -> RankProfile:
        """Stop recording and return the totals; the times of a trace begin at `origin`, nanoseconds of Unix time."""
        self.stop()
        of_rust, tracks = self._rust.totals(), self._tracks()
        wall = sum(step.end - step.start for step in self._steps)
        found: dict[OpKind, Sequence[tuple[str, int, int]]] = {
            "rust": of_rust,
            "torch": self_times(tracks, "torch"),
            "gpu": self_times(tracks, "gpu"),
        }
        ops = [
            OpTime(name, kind, calls, total / 1000, total / wall if wall else 0.0)
            for kind, rows in found.items()
            for name, calls, total in rows
        ]
        events, untraced = b"", 0
        if with_trace:
            runs = [Span(of_rust[index][0], start, duration) for index, start, duration in self._rust.runs()]
            events, left_out = chrome_events(rank, origin, self._steps, [Track("rust", "Rust ops", runs), *tracks])
            untraced = left_out + sum(calls for _, calls, _ in of_rust) - len(runs)
        times = RankTimes(
            rank=rank,
            num_steps=len(self._steps),
            num_tokens=sum(step.num_tokens for step in self._steps),
            wall_us=wall / 1000,
            other_us=max(0.0, wall / 1000 - sum(op.total_us for op in ops if op.kind != "gpu")),
            untraced=untraced,
            ops=sorted(ops, key=lambda op: -op.total_us),
        )
        return RankProfile(times, events)

    def _tracks(self) -> list[Track]:
        if not self._steps or self._torch is None:
            return []
        return self._torch.tracks(self._steps[0].start, self._steps[-1].end)


def _torch_recorder(device: Device) -> "TorchRecorder | None":
    """Records torch's ops in a process that has imported torch: for GPUs, and for models of transformers."""
    if "torch" not in sys.modules:
        return None
    from pyllm.workers.torch_recorder import TorchRecorder

    return TorchRecorder(device.type == "cuda")


class _RecordedStep:
    """A step that calls `end` when it is answered."""

    def __init__(self, pending: Pending, end: Callable[[], None]) -> None:
        self._pending = pending
        self._end = end

    def is_done(self) -> bool:
        return self._pending.is_done()

    def answer(self) -> Sampled:
        sampled = self._pending.answer()
        self._end()
        return sampled
