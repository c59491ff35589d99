"""`SchedulingParams`: a request's priority, tenant and deadlines, checked. Knows neither the wire nor the policies."""

import math

import msgspec

from pyllm.sampling_params import check

MAX_CACHE_SALT_CHARACTERS = 1024
MAX_NAME_CHARACTERS = 256
_NOT_IN_SALTS = frozenset("@/\\\0")  # vLLM's


class SchedulingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of these count is the scheduling policy's affair; `timeout` counts under all of them.

    `priority`: lower runs earlier, as in vLLM. `tenant`: on whose account the request runs; tenants share no cached
    blocks, and neither do requests with different ones of `cache_salt`. `timeout`: seconds after which it ends
    unfinished, with the finish reason `deadline`. `ttft_target` and `tpot_target`: seconds to the first token, and from
    token to token, that are wanted. `name`: the request's in reports (`EngineClient.requests`); nothing depends on it.

    Raises:
        RequestError: a value is out of its range; the text has the value and the range.
    """

    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    ttft_target: float | None = None
    tpot_target: float | None = None
    cache_salt: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        check("priority", self.priority, -(2**31) <= self.priority < 2**31, "from -2**31 to 2**31 - 1")
        allowed = f"at most {MAX_CACHE_SALT_CHARACTERS} characters, none of them @, /, \\ or NUL"
        is_allowed = len(self.cache_salt) <= MAX_CACHE_SALT_CHARACTERS and not _NOT_IN_SALTS & set(self.cache_salt)
        check("cache_salt", "another text", is_allowed, allowed)  # It is a secret, so the error does not have it.
        size = len(self.name)
        check("name", size, size <= MAX_NAME_CHARACTERS, f"at most {MAX_NAME_CHARACTERS} characters")
        for name in ("timeout", "ttft_target", "tpot_target"):
            seconds = getattr(self, name)
            if seconds is not None:
                check(name, seconds, 0.0 < seconds < math.inf, "a finite number of seconds above 0")

    def with_priority(self, priority: int | None) -> "SchedulingParams":
        """These with another priority, if one is given: vLLM has it as an argument of its own."""
        return self if priority is None else msgspec.structs.replace(self, priority=priority)


DEFAULT_SCHEDULING = SchedulingParams()
