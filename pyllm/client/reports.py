"""The answers to `EngineClient`'s calls, as structs. Ignores fields that a later core adds."""

import msgspec


class SampleReport(msgspec.Struct, frozen=True):
    """Where one sample of a request stands.

    `state` is waiting, preempted, swapped, held, loading, running or finished. `num_tokens` of it were computed by the
    last step; if that is 0, `reason` says why, and `hold` what the one who holds it said. It knows `num_known` tokens,
    and has keys and values of `num_computed`.
    """

    sample: int
    state: str
    num_tokens: int
    num_computed: int
    num_known: int
    reason: str | None = None
    hold: str | None = None


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """A request of any client, live or ended.

    `client` and `request` name it in the core of this index, `name` is `SchedulingParams.name`, of a server's request
    its id. `num_output_tokens` are those of all samples, `num_cached_tokens` those of the prompt that the prefix cache
    had, `num_blocks` those that it has on the device, shared ones included.

    `age` is seconds since it came, `scheduled_age` since a step first computed any of it, `ended_age` since it ended,
    each None if that has not happened. `finish` is stop, length, abort or deadline; then `samples` is empty.
    """

    client: int
    request: int
    name: str
    tenant: str
    priority: int
    num_samples: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_blocks: int
    num_preemptions: int
    age: float
    scheduled_age: float | None
    ended_age: float | None
    finish: str | None
    samples: list[SampleReport]
    core: int = 0


class BlockOwners(msgspec.Struct, frozen=True):
    """How many blocks of the device belong to whom; the numbers add up to all blocks.

    `tenants`: to requests of a tenant, by its name. `pinned`: to pins, while no request uses them. `in_transit`: to
    copies of steps in flight and to loads. `free`: to nobody; the prefix cache may still know their contents.
    """

    tenants: dict[str, int]
    pinned: int
    in_transit: int
    free: int


class Decision(msgspec.Struct, frozen=True):
    """What one step decided, `now` by the core's clock, in seconds.

    `num_swapped` of those preempted went to the host. `stop` is why the first in the queue was not admitted; None: the
    queue was empty.
    """

    step: int
    now: float
    num_rows: int
    num_tokens: int
    num_prefill_tokens: int
    num_admitted: int
    num_preempted: int
    num_swapped: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    stop: str | None = None


class TenantReport(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant has had, in tokens by their cost and its weight, and its sequences in the queue."""

    tenant: str
    service: int
    num_waiting: int


class KVEvent(msgspec.Struct, frozen=True, array_like=True):
    """A change of what the prefix cache knows: `kind` is stored, removed or cleared.

    A block goes by a hash of its tokens and of `parent`, the block before it (None: it is the first). `tokens` are
    packed int32, and `tier` is device or host. `group` counts the groups of layers that have blocks of their own
    (`ModelInfo.kv_windows`): a prefix can be used where each has the last blocks that its window reaches, or all.
    """

    kind: str
    hash: bytes
    parent: bytes | None
    tokens: bytes
    tier: str
    group: int = 0


class KVEvents(msgspec.Struct, frozen=True, array_like=True):
    """Events of one run of the core, which `incarnation` names, and the number of the first of them.

    Of a snapshot `first` is the number of the event that comes next. A number above the one expected means that events
    were dropped.
    """

    incarnation: int
    first: int
    events: list[KVEvent]
