"""`SchedulingParams`: a request's priority, tenant and deadlines, checked. Knows neither the wire nor the policies."""

import math
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from pyllm.errors import RequestError
from pyllm.kv_transfer.stores.store import Retention
from pyllm.parameters.arguments import (
    NamedParameters,
    NumberReader,
    RangeChecks,
    check,
    declared,
    instance,
    is_unicode,
    text,
)

MAX_CACHE_SALT_CHARACTERS = 1024
MAX_NAME_CHARACTERS = 256
MAX_ADAPTER_CHARACTERS = MAX_NAME_CHARACTERS + 33  # with @ and the digest of `Adapter.key`

# The parameters: the type, range and text of each, as in `parameters/sampling_params.py`.
Priority = Annotated[
    int, declared("Lower ones run earlier, by --scheduling-policy priority.", ge=-(2**31), le=2**31 - 1)
]
_SECONDS = "a finite number of seconds above 0"
Timeout = Annotated[float, declared("Seconds after which the request ends.", _SECONDS, gt=0.0)]
TtftTarget = Annotated[float, declared("Seconds to the first token that the policy aims at.", _SECONDS, gt=0.0)]
TpotTarget = Annotated[float, declared("Seconds a token that the policy aims at.", _SECONDS, gt=0.0)]
CacheSalt = Annotated[str, Meta(description="Requests with other salts share no cached blocks.")]
CoreIndex = Annotated[int, declared("The core that is to have the request.", "the index of a core, from 0", ge=0)]

_RETENTIONS: tuple[str, ...] = get_args(Retention)
_LENGTHS = {"name": MAX_NAME_CHARACTERS, "session": MAX_NAME_CHARACTERS, "adapter": MAX_ADAPTER_CHARACTERS}
_NOT_IN_SALTS = frozenset("@/\\\0")  # vLLM's


class SchedulingParams(
    msgspec.Struct, metaclass=NamedParameters, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Scheduling parameters; the policy determines which ones have an effect, except `timeout`, which always has.

    `priority`: lower runs earlier, as in vLLM. `tenant`: on whose account the request runs; tenants share no cached
    blocks, and neither do requests with different ones of `cache_salt`. `timeout`: seconds after which it ends
    unfinished, with the finish reason `deadline`. `ttft_target` and `tpot_target`: seconds to the first token, and from
    token to token, that are wanted. `name`: the request's in reports (`EngineClient.requests`); nothing depends on it.

    `adapter`: the name of a LoRA adapter of the engine's; empty: the model alone. An `Adapter.key` names one with these
    bytes, and no later one of the same name.

    `kv_cache_retention`: how long a KV store keeps the request's blocks. `none`: nothing of it is written to a store.
    `default`: as the store's settings say. `long`: longer than others, also what is cached already of its prompt.

    Where there are several cores, requests of one `session` go to the same one, unless another would be done earlier.
    `data_parallel_rank`: the index of the core that is to have the request; while that cannot, another one has it.

    Raises:
        RequestError: a value is out of its range; the text has the value and the range.
    """

    priority: Priority = 0
    tenant: str = ""
    timeout: Timeout | None = None
    ttft_target: TtftTarget | None = None
    tpot_target: TpotTarget | None = None
    cache_salt: str = ""
    name: str = ""
    session: str = ""
    data_parallel_rank: CoreIndex | None = None
    kv_cache_retention: Retention = "default"
    adapter: str = ""

    def __post_init__(self) -> None:
        self._read_types()
        _RANGES.check(self)
        allowed = f"at most {MAX_CACHE_SALT_CHARACTERS} characters, none of them @, /, \\ or NUL"
        is_allowed = len(self.cache_salt) <= MAX_CACHE_SALT_CHARACTERS and not _NOT_IN_SALTS & set(self.cache_salt)
        check("cache_salt", "another text", is_allowed, allowed)  # It is a secret, so the error does not have it.
        retention = self.kv_cache_retention
        check("kv_cache_retention", f"{retention:.80}", retention in _RETENTIONS, "none, default or long")
        for name, most in _LENGTHS.items():
            size = len(getattr(self, name))
            check(name, size, size <= most, f"at most {most} characters")
        for name in ("timeout", "ttft_target", "tpot_target"):
            check(name, math.inf, getattr(self, name) != math.inf, _SECONDS)

    def _read_types(self) -> None:
        _NUMBERS.read(self)
        for name in ("tenant", "name", "session", "kv_cache_retention", "adapter"):
            text(name, getattr(self, name))
        if not isinstance(self.cache_salt, str) or not is_unicode(self.cache_salt):
            # It is a secret, so the error does not have it.
            kind = type(self.cache_salt).__name__
            raise RequestError(f"cache_salt must be a text of Unicode, got a {kind}", "cache_salt")


_NUMBERS = NumberReader(SchedulingParams)
_RANGES = RangeChecks(SchedulingParams)
DEFAULT_SCHEDULING = SchedulingParams()


def with_priority(scheduling: SchedulingParams, priority: int | None) -> SchedulingParams:
    """The parameters with another priority, if one is given: in vLLM it is a separate argument.

    Raises:
        RequestError: `scheduling` has another type, or the priority is out of its range.
    """
    instance("scheduling", scheduling, SchedulingParams)
    return scheduling if priority is None else msgspec.structs.replace(scheduling, priority=priority)
