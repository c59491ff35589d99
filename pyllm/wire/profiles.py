"""The contents of a profile of a core's ranks, and its limits. Knows neither the recording nor its clients."""

from typing import Literal

import msgspec

MAX_PROFILE_STEPS = 100
MAX_PROFILE_SECONDS = 60.0
MAX_TRACE_EVENTS = 100_000  # in a rank's trace, for each kind of op: about 3 MB compressed

OpKind = Literal["rust", "torch", "gpu"]


class OpTime(msgspec.Struct, frozen=True):
    """One op in all steps of a rank.

    `kind` is its source: "rust" for our kernels on a CPU; "torch" for an op on the host in torch's profiler, without
    the time of ops inside it; "gpu" for a kernel or copy on a GPU, which runs beside the host. `share` is `total_us`
    divided by the time of the steps, `RankTimes.wall_us`.
    """

    op: str
    kind: OpKind
    calls: int
    total_us: float
    share: float


class RankTimes(msgspec.Struct, frozen=True):
    """The times of one rank in the steps of a profile, in microseconds.

    `wall_us` sums the time from the start of each step, or the end of the one before, to its tokens. `other_us` is the
    host's part of it outside ops: Python, and waiting for a GPU or another rank. `untraced` counts the events that are
    only in `ops`, as the trace is full. `ops` are in falling order of their time.
    """

    rank: int
    num_steps: int
    num_tokens: int
    wall_us: float
    other_us: float
    untraced: int
    ops: list[OpTime]


class RankProfile(msgspec.Struct, frozen=True):
    """The times of a rank, and the events of its Chrome trace: a JSON array in gzip, empty unless requested."""

    times: RankTimes
    events: bytes = b""


class ProfileOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to the call `profile`.

    `ended_by`: all steps were recorded ("steps"), or the time passed before ("seconds"). There is no profile if another
    one is running ("running"), or workers died or refused ("interrupted"); see `reason`. It took `seconds`.
    """

    ended_by: Literal["steps", "seconds", "running", "interrupted"]
    seconds: float = 0.0
    reason: str = ""
    ranks: list[RankProfile] = []
