"""What a profile of a core's ranks says, and its bounds. Knows neither how steps are recorded nor who asks."""

from typing import Literal

import msgspec

MAX_PROFILE_STEPS = 100
MAX_PROFILE_SECONDS = 60.0
MAX_TRACE_EVENTS = 100_000  # of a rank's trace, for each kind of op: about 3 MB compressed

OpKind = Literal["rust", "torch", "gpu"]


class OpTime(msgspec.Struct, frozen=True):
    """One op in all steps of a rank.

    `kind` is where it comes from: "rust" for our kernels on a CPU; "torch" for what torch's profiler saw on the host,
    without the time of ops inside of it; "gpu" for a kernel or copy on a GPU, beside which the host goes on. `share` is
    `total_us` by the time of the steps, `RankTimes.wall_us`.
    """

    op: str
    kind: OpKind
    calls: int
    total_us: float
    share: float


class RankTimes(msgspec.Struct, frozen=True):
    """What one rank did in the steps of a profile, in microseconds.

    `wall_us` is the time from when each step began, or the one before it had ended, to its tokens. `other_us` is the
    host's part of it in no op: Python, and waiting for a GPU or another rank. `untraced` counts what the trace leaves
    out, as it is full; the table has it. `ops` are in falling order of their time.
    """

    rank: int
    num_steps: int
    num_tokens: int
    wall_us: float
    other_us: float
    untraced: int
    ops: list[OpTime]


class RankProfile(msgspec.Struct, frozen=True):
    """The times of a rank, and the events of its Chrome trace: a JSON array in gzip, empty unless asked for."""

    times: RankTimes
    events: bytes = b""


class ProfileOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to the call `profile`.

    `ended_by`: all steps have come, or the seconds passed before; or there is none, as one runs already ("running"), or
    as workers died or refused ("interrupted"). The `reason` says more. It took `seconds`.
    """

    ended_by: Literal["steps", "seconds", "running", "interrupted"]
    seconds: float = 0.0
    reason: str = ""
    ranks: list[RankProfile] = []
