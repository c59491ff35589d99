"""The scheduling parameters of a request, from its body and its headers. Knows no API's fields."""

from hashlib import blake2b

from pyllm.frontend.requests.request_context import RequestContext
from pyllm.kv_transfer.stores.store import Retention
from pyllm.parameters.arguments import check
from pyllm.parameters.scheduling_params import MAX_NAME_CHARACTERS, SchedulingParams


def scheduling_from(
    context: RequestContext,
    priority: int | None,
    *,
    timeout: float | None = None,
    ttft_target: float | None = None,
    tpot_target: float | None = None,
    cache_salt: str | None = None,
    kv_cache_retention: Retention = "default",
) -> SchedulingParams:
    """The checked parameters of a body, completed from the context. Tenant and adapter come from the context only.

    Raises:
        RequestError: a value is out of range, or the salt is empty: its caller would share cached blocks unknowingly.
    """
    check("cache_salt", "none", cache_salt != "", "a text that is not empty, or left out")
    return SchedulingParams(
        priority=priority or 0,
        tenant=context.tenant,
        timeout=least_timeout(timeout, context.timeout),
        ttft_target=ttft_target,
        tpot_target=tpot_target,
        cache_salt=cache_salt or "",
        kv_cache_retention=kv_cache_retention,
        session=_session(context.session),
        data_parallel_rank=context.data_parallel_rank,
        name=context.request_id,
        adapter=context.adapter,
    )


def _session(name: str) -> str:
    """The name of a session, or its hash where it is too long for `SchedulingParams`."""
    return name if len(name) <= MAX_NAME_CHARACTERS else blake2b(name.encode(errors="replace")).hexdigest()


def least_timeout(*timeouts: float | None) -> float | None:
    """The shortest of several timeouts in seconds; None where there is none."""
    return min((seconds for seconds in timeouts if seconds is not None), default=None)
