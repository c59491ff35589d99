"""The answers to `EngineClient`'s calls, as structs. Ignores fields that a later core adds."""

import msgspec


class SampleReport(msgspec.Struct, frozen=True):
    """The state of one sample of a request.

    `state` is waiting, preempted, swapped, held, loading, running or finished. The last step computed `num_tokens` of
    its tokens; if 0, `reason` says why. `hold` has the names of its holders, separated by commas. `num_known` counts
    its prompt and output tokens, `num_computed` those with keys and values in the KV cache.
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

    `client` and `request` identify it within the core of index `core`; `name` is `SchedulingParams.name`, in a server
    the request id. `num_output_tokens` counts all samples' tokens, `num_cached_tokens` the prompt tokens found in the
    prefix cache, `num_blocks` its KV blocks on the device, shared ones included.

    `age` is seconds since arrival, `scheduled_age` since the first step that computed any of it, `ended_age` since it
    ended, each None if that has not happened. `finish` is stop, length, abort or deadline; then `samples` is empty.
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
    """The number of device blocks by owner; the numbers add up to all blocks.

    `tenants`: blocks of requests, by the name of their tenant. `pinned`: blocks of pins that no request uses.
    `in_transit`: blocks of loads and of copies in steps in flight. `free`: no owner; the prefix cache may use them.
    """

    tenants: dict[str, int]
    pinned: int
    in_transit: int
    free: int


class Decision(msgspec.Struct, frozen=True):
    """The scheduler's decision for one step, at `now` by the core's clock, in seconds.

    `num_swapped` of the preempted sequences were swapped to the host. `stop` is the reason why the first in the queue
    was not admitted; None: the queue was empty.
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
    """A tenant's service, in tokens by their cost and its weight, and its number of waiting sequences."""

    tenant: str
    service: int
    num_waiting: int


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter, and the sequences that run and the requests that wait with it.

    `path` is as it was given, `digest` a hash of all of its bytes. Unless it `is_listed`, only requests use it that
    began before it was unloaded. Unless it `is_loaded`, it is read from disk when a request needs it.
    """

    name: str
    path: str
    digest: str
    rank: int
    is_listed: bool
    is_loaded: bool
    num_running: int
    num_waiting: int


class KVEvent(msgspec.Struct, frozen=True, array_like=True):
    """A change of the prefix cache: `kind` is stored, removed or cleared.

    `hash` is over a block's tokens and `parent`, the block before it (None: it is the first). `tokens` are packed
    int32, `tier` is device or host. `group` is the index of the group of layers (`ModelInfo.kv_windows`): a prefix can
    be used once each group has the last blocks that its window reaches, or all blocks if it has no window.
    """

    kind: str
    hash: bytes
    parent: bytes | None
    tokens: bytes
    tier: str
    group: int = 0


class KVEvents(msgspec.Struct, frozen=True, array_like=True):
    """Events of one run of the core, which `incarnation` names; `first` is the number of the first event.

    In a snapshot `first` is the number of the next event. A number above the expected one means that events were
    dropped.
    """

    incarnation: int
    first: int
    events: list[KVEvent]
