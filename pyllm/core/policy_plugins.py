"""Scheduling policies from other packages: entry points of the group `pyllm.policies`, called once for each request.

Knows neither queues nor blocks: a policy returns a number, and the scheduler serves the lowest first.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from numbers import Real

from pyllm.config.plugins import find_entry_point
from pyllm.errors import ConfigError, RequestError
from pyllm.wire.messages import Submit

GROUP = "pyllm.policies"
BUILT_IN = ("fcfs", "priority", "shortest", "fair")


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """The facts about a request that a policy may use. Times are seconds; `arrival` is by the core's own clock."""

    arrival: float
    age: float  # seconds since its client got it; more than 0 when the client sends it again
    num_prompt_tokens: int
    num_output_tokens: int  # of all samples so far; more than 0 when it is resumed
    max_tokens: int
    min_tokens: int
    n: int
    priority: int
    tenant: str
    adapter: str
    timeout: float | None
    ttft_target: float | None
    tpot_target: float | None


Policy = Callable[[PolicyRequest], float]
"""Returns a request's key, a finite number. The lowest key is served first, equal ones by arrival."""


def find_policy(name: str, offered: Iterable[EntryPoint] | None = None) -> EntryPoint | None:
    """The entry point of a policy, or None if the scheduler has it built in. Imports nothing from it.

    Raises:
        ConfigError: there is no such policy, or several that differ.
    """
    return find_entry_point("policy", name, GROUP, BUILT_IN, offered)


def load_policy(name: str, offered: Iterable[EntryPoint] | None = None) -> Policy | None:
    """The callable of a policy, or None if the scheduler has it built in.

    Raises:
        ConfigError: as `find_policy`, or it cannot be imported, or is not callable.
    """
    entry = find_policy(name, offered)
    if entry is None:
        return None
    try:
        policy = entry.load()
    except Exception as error:
        raise ConfigError(f"policy {name!r} ({entry.value}) cannot be imported: {error}") from error
    if not callable(policy):
        raise ConfigError(f"policy {name!r} ({entry.value}) is not callable, but {policy!r:.80}")
    checked: Policy = policy
    return checked


def policy_key(policy: Policy, request: PolicyRequest) -> float:
    """A request's key.

    Raises:
        RequestError: the policy failed on this request, or returned no finite number.
    """
    try:
        key = policy(request)
    except Exception as error:
        raise RequestError(f"the scheduling policy failed: {type(error).__name__}: {error}") from error
    try:
        if isinstance(key, Real) and math.isfinite(key):
            return float(key)
    except OverflowError:
        pass  # The integer is too large for a float.
    raise RequestError(f"the scheduling policy gave {key!r:.80}; its keys must be finite numbers")


def facts(submit: Submit, now: float) -> PolicyRequest:
    """The facts about a submitted request for a policy of another package."""
    return PolicyRequest(
        arrival=now - submit.age,
        age=submit.age,
        num_prompt_tokens=len(submit.prompt) // 4,
        num_output_tokens=sum(len(output.tokens) // 4 for output in submit.outputs),
        max_tokens=submit.max_tokens,
        min_tokens=submit.min_tokens,
        n=submit.n,
        priority=submit.priority,
        tenant=submit.tenant,
        adapter=submit.adapter,
        timeout=submit.timeout,
        ttft_target=submit.ttft_target,
        tpot_target=submit.tpot_target,
    )
