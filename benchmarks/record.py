"""The output of one benchmark."""

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Record(TypedDict, total=False):
    """A figure: `value`, `unit` and `p99` (the cost of the slowest steps); the other fields describe the case."""

    name: str
    value: float
    unit: str
    p99: float
    rows: int
    tokens: int
    waiting: int
    policy: str
    requests: int
    block_size: int
    n: int
    beams: int
    stops: int
    expected_growth: float
    streams: int
    cores: int
    placement: str
    prefix_hash: str
    cached: str  # where the blocks of a prompt are
    load: str
    tenants: int
    least_share: float  # what the tenant got that got least, as a share of what each would if all got the same
    linear: float  # of `value`, as a share of what so many cores would give if each gave what one gives alone
    of_one_core: float  # of `value`, as a share of what one core with all memory has
    stages: int  # of a pipeline, and what each of its layers sleeps
    layer_ms: float
    cold: float  # `value` where nothing is cached, and where the device has it
    device: float
    of_cold: float  # `value`, as a share of `cold`
    page_cache: str  # whether it was dropped, so that blocks came from the disk itself
    errors: int  # streams that did not end as they should
    tokens_per_event: float
    delay_p99_ms: float
    kind: str
    kilobytes: float
    of_look: float  # of `value`, the second look at a body
    calls_of_a_layer: int  # how many functions of Python one layer of a model calls
    with_products: float  # `value` and the matrix products that a GPU would compute
    worst: float  # of what `value` is the median of
    answer_s: float
    share: float  # of the requests that a core has, once it has its part
    real_time: bool  # whether the measured processes had real-time priority
    model: str
    context: int  # tokens before those that are measured
    top_k: int  # blocks that sparse attention chooses
    dense: float  # `value` with dense attention
    truth: float  # what `value` should be, by the record of what was measured
    off_percent: float  # of `value` from that
    # What `value` is to be compared with: memory reserved for each, or batches that run until their longest ends...
    reserved: float
    without: float  # the same without what is measured
    static: float
    torch: float  # ...or the same by torch...
    plain: float  # ...or in the plainest way
    # ...or in other weights, by our own family, and by transformers alone.
    int8: float
    family: float
    generate: float
    continuous_batching: float
    tokens_per_step: float
    recomputed: float  # tokens, as a share of those that had to be computed once
    # Microseconds: what recovery costs where nobody dies, each timed alone, and the step that it is a share of.
    accept_us: float
    epoch_check_us: float
    heartbeat_us: float
    step_us: float


def percentiles(name: str, seconds: Sequence[float], **case: int | str) -> Record:
    """Median and 99th percentile of durations, in microseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    record: Record = {"name": name, "value": round(cuts[49] * 1e6, 1), "unit": "us", "p99": round(cuts[98] * 1e6, 1)}
    record.update(case)  # type: ignore[typeddict-item]  # `rows`, `tokens` and their like
    return record
