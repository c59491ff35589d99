"""The methods of a core that clients may call by name, outside the stream of tokens; see `Call`.

Checks arguments, which come over the wire; the scheduler does the rest. Knows no messages.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast, get_type_hints

import msgspec

from pyllm._rust import Scheduler, SchedulerError
from pyllm.config.engine_settings import FIXED_SCHEDULER_SETTINGS, EngineConfig, SchedulerConfig
from pyllm.config.option_reading import config_part
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.adapters import Adapters
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.kept_state import KeptState
from pyllm.core.pausing import PAUSE_MODES, Pausing
from pyllm.core.policy_plugins import BUILT_IN, Policy, load_policy
from pyllm.core.profiling import Profiling
from pyllm.core.sleeping import Sleeping
from pyllm.core.weight_versions import SWITCH_MODES, Weights
from pyllm.errors import EngineDeadError, RequestError
from pyllm.supervision.log_level import LOG_LEVELS, current_log_level
from pyllm.wire.ipc import MAX_MESSAGE_BYTES
from pyllm.wire.messages import MAX_REQUEST_REPORTS, Adapter, PauseMode, SharedArray, SwitchMode
from pyllm.wire.profiles import MAX_PROFILE_SECONDS, MAX_PROFILE_STEPS, ProfileOutcome

LIVE = tuple(name for name in SchedulerConfig.__struct_fields__ if name not in FIXED_SCHEDULER_SETTINGS)
LOG_LEVEL = "log_level"  # also changed by `reconfigure` if the core is a process of its own
LEAST_BUDGET = 16  # tokens of a step; a lack of memory does not lower the budget further
MAX_EVENTS = 10_000  # in one reply
# The methods of ranks that clients may call, by vLLM's names where it has them.
RANK_METHODS = {
    "reload_weights": "wake_weights",
    "statistics": "statistics",
    "instruction_set": "instruction_set",
    "weights_room": "weights_room",
}
EVENT_BYTES = 128  # an upper bound of an event's size without its tokens

Event = tuple[str, bytes, bytes | None, bytes, str, int]

logger = logging.getLogger(__name__)


def live_settings(settings: SchedulerConfig) -> dict[str, Any]:
    """The live settings under the scheduler's names; a policy of another package is "custom" there."""
    values = {name: getattr(settings, name) for name in LIVE}
    policy = values.pop("scheduling_policy")
    return values | {"policy": policy if policy in BUILT_IN else "custom"}


class Calls:
    """Answers calls; `policy` is the scheduling policy of another package, if any, which `reconfigure` may replace.

    `kept` has the state of earlier cores: its settings apply from the start. `inventory` is told when the prefix cache
    is reset. Without `set_log_level`, the log level belongs to the application around the core, and is not a setting.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        config: EngineConfig,
        policy: Policy | None,
        stats: Callable[[], dict[str, int]],
        clock: Callable[[], float],
        *,
        profiling: Profiling,
        adapters: Adapters,
        pausing: Pausing,
        weights: Weights,
        sleeping: Sleeping,
        kept: KeptState,
        inventory: HostInventory,
        executor: Executor,
        set_log_level: Callable[[str], None] | None = None,
    ) -> None:
        self.policy = policy
        self._profiling = profiling
        self._adapters = adapters
        self._pausing = pausing
        self._weights = weights
        self._sleeping = sleeping
        self._kept = kept
        self._inventory = inventory
        self._executor = executor
        self._set_log_level = set_log_level
        self._live = LIVE if set_log_level is None else (*LIVE, LOG_LEVEL)
        self._clock = clock
        self._scheduler = scheduler
        self._config = config
        self._settings = config.scheduler
        self._stats = stats
        self._methods: dict[str, Callable[..., Any]] = {
            "stats": self._get_stats,
            "explain": self._explain,
            "requests": self._requests,
            "block_owners": self._block_owners,
            "decisions": self._decisions,
            "tenants": self._tenants,
            "reconfigure": self._reconfigure,
            "reset_prefix_cache": self._reset_prefix_cache,
            "pin": self._pin,
            "unpin": self._unpin,
            "kv_events": self._kv_events,
            "kv_snapshot": self._kv_snapshot,
            "profile": self._profile,
            "load_adapter": self._load_adapter,
            "unload_adapter": self._unload_adapter,
            "adapters": self._list_adapters,
            "pause": self._pause,
            "resume": self._resume,
            "is_paused": self._is_paused,
            "load_weights": self._load_weights,
            "load_arrays": self._load_arrays,
            "switch_weights": self._switch_weights,
            "collective_rpc": self._collective_rpc,
            "drop_weights": self._drop_weights,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "is_sleeping": self._is_sleeping,
        }
        self._restore()

    def halve_budget(self) -> bool:
        """Plan steps of half as many tokens from now on. False: they are at the minimum, or one has whole prompts."""
        before = self._settings.max_num_batched_tokens
        after = max(before // 2, LEAST_BUDGET, self._config.cache.block_size)
        if after >= before:
            return False
        settings = msgspec.structs.replace(self._settings, max_num_batched_tokens=after)
        try:
            self._scheduler.reconfigure(**live_settings(settings))
        except SchedulerError:
            return False
        self._settings = settings
        logger.warning("steps have at most %d tokens from now on, not %d: max_num_batched_tokens", after, before)
        return True

    def answer(self, client: int, method: str, args: tuple[Any, ...]) -> Any:
        """The value of a client's call, or an awaitable of it.

        Raises:
            RequestError: there is no such method, or it refused; the text says why.
        """
        call = self._methods.get(method)
        if call is None:
            raise RequestError(f"unknown method {method!r}; known: {', '.join(sorted(self._methods))}")
        try:
            return call(*_checked(call, client, *args))
        except (TypeError, ValueError) as error:
            raise RequestError(f"{method}: {error}") from error

    def _get_stats(self, client: int) -> dict[str, int]:
        """Gauges and counters of the scheduler and the core, with the fragmentation of blocks."""
        del client
        uncomputed = {"num_uncomputed_tokens": self._scheduler.num_uncomputed_tokens()}
        return self._stats() | uncomputed | self._scheduler.fragmentation()

    def _explain(self, client: int, request: int) -> list[dict[str, Any]]:
        """The state of each sample of a request of this client, and its reason; see `Scheduler.explain`."""
        return self._scheduler.explain(client, request)

    def _requests(self, client: int, limit: int = MAX_REQUEST_REPORTS, name: str | None = None) -> list[dict[str, Any]]:
        """All clients' requests, see `Scheduler.requests`; times become ages in seconds. At most `limit`, and 2,000."""
        del client
        now, most = self._clock(), min(limit, MAX_REQUEST_REPORTS)
        reports = self._scheduler.requests(most, name)
        if len(reports) < most:
            reports += self._kept.ended_before(name)[: most - len(reports)]
        return [_with_ages(report, now) for report in reports]

    def _block_owners(self, client: int) -> dict[str, Any]:
        """The number of blocks on the device by owner; see `Scheduler.block_owners`."""
        del client
        return self._scheduler.block_owners()

    def _decisions(self, client: int, limit: int = 100) -> list[dict[str, Any]]:
        """The decisions of the last steps, empty ones included, oldest first: at most `limit`, and 1,024."""
        del client
        return self._scheduler.decisions(limit)

    def _tenants(self, client: int) -> list[tuple[str, int, int]]:
        """Tenant, service in tokens by cost and weight, waiting sequences; one nameless tenant unless under "fair"."""
        del client
        return self._scheduler.tenants()

    def _reconfigure(self, client: int, changes: dict[str, Any]) -> dict[str, Any]:
        """Change live settings by the names of their flags, from the next step on; returns all of them, changed.

        Requests keep the key that a policy of another package gave them on arrival, 0 if there was no such policy.
        """
        for name in changes:
            if name not in self._live:
                known = ", ".join(self._live)
                raise RequestError(f"{name!r} cannot change while the engine runs; these can: {known}")
        self._apply(changes, f"client {client} changed settings")
        if changes:
            self._kept.change(changes)
        values = {name: getattr(self._settings, name) for name in LIVE}
        return values if self._set_log_level is None else values | {LOG_LEVEL: current_log_level()}

    def _restore(self) -> None:
        """Apply the settings that clients of an earlier core have changed."""
        changes = {name: value for name, value in self._kept.settings.items() if name in self._live}
        try:
            if changes:
                self._apply(changes, "settings that clients of an earlier core changed")
        except (TypeError, ValueError) as error:
            logger.warning("the settings that an earlier core had are not in effect: %s: %s", changes, error)

    def _apply(self, changes: dict[str, Any], cause: str) -> None:
        """Change all of these settings and log them with their cause, or raise and change none."""
        log_level = _checked_log_level(changes[LOG_LEVEL]) if LOG_LEVEL in changes else None
        scheduling = {name: value for name, value in changes.items() if name != LOG_LEVEL}
        settings = config_part(SchedulerConfig, msgspec.structs.asdict(self._settings) | scheduling)
        most = self._config.scheduler.max_num_batched_tokens
        if settings.max_num_batched_tokens > most:
            text = f"the workers keep memory for steps of {most} tokens, not {settings.max_num_batched_tokens}"
            raise RequestError(f"{text}: start the engine with a larger max_num_batched_tokens")
        policy = self.policy
        if settings.scheduling_policy != self._settings.scheduling_policy:
            policy = load_policy(settings.scheduling_policy)
        self._scheduler.reconfigure(**live_settings(settings))
        self._settings, self.policy = settings, policy
        # A change is logged as a warning. A change of the level is logged under whichever level shows warnings.
        is_logged = logger.isEnabledFor(logging.WARNING)
        if changes and is_logged:
            logger.warning("%s: %s", cause, changes)
        if log_level is not None and self._set_log_level is not None:
            self._set_log_level(log_level)
        if changes and not is_logged:
            logger.warning("%s: %s", cause, changes)

    def _reset_prefix_cache(self, client: int) -> Awaitable[None] | None:
        """Forget all cached prefixes for good; running requests keep their blocks."""
        del client
        self._scheduler.reset_prefix_cache()
        return self._inventory.reset()

    def _pin(  # noqa: PLR0917 - the wire gives a call's arguments by position
        self, client: int, name: int, prompt: bytes, tenant: str = "", cache_salt: str = "", adapter: str = ""
    ) -> int:
        """Protect the full blocks of a prefix (packed int32) from eviction until `unpin`; returns their number.

        All clients share the names of pins, and a pin stays when its client disconnects.
        """
        del client
        key, _ = self._adapters.find(adapter)
        return self._scheduler.pin(name, prompt, tenant=tenant, cache_salt=cache_salt, adapter=key)

    def _unpin(self, client: int, name: int) -> bool:
        """Allow a pinned prefix to be evicted. False: there is no such pin."""
        del client
        return self._scheduler.unpin(name)

    def _kv_events(self, client: int, first: int, tokens: bool = True) -> tuple[int, int, list[Event]]:
        """Incarnation, number of the first event, and at most 10,000 of the prefix cache's events from `first` on.

        The number is above `first` if older events were dropped. Without `tokens`, events name blocks only by hashes.
        """
        del client
        self._check_events()
        return self._scheduler.events(first, MAX_EVENTS, tokens)

    def _kv_snapshot(self, client: int, tokens: bool = True) -> tuple[int, int, list[Event]]:
        """Incarnation, number of the next event, and all blocks in the prefix cache now, as "stored" events."""
        del client
        self._check_events()
        incarnation, following, events = self._scheduler.snapshot(tokens)
        num_bytes = len(events) * (4 * self._config.cache.block_size * tokens + EVENT_BYTES)
        if num_bytes > MAX_MESSAGE_BYTES:
            text = f"{len(events)} blocks take up to {num_bytes} bytes, and a message {MAX_MESSAGE_BYTES}"
            raise RequestError(f"{text}: reset_prefix_cache, or start the engine with a larger block_size")
        return incarnation, following, events

    async def _profile(
        self, client: int, num_steps: int, seconds: float, with_trace: bool = False, ranks: list[int] | None = None
    ) -> ProfileOutcome:
        """Record the next steps, up to 100, on `ranks`; it ends after `seconds`, up to 60, with the steps so far.

        Without `ranks`, on every rank.
        """
        del client
        size = num_ranks(self._config.parallel)
        chosen = range(size) if ranks is None else sorted(set(ranks))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < size:
            text = f"ranks is {ranks}: give some of 0 to {size - 1}, or leave it out for all"
            raise RequestError(text, "ranks")
        if not 1 <= num_steps <= MAX_PROFILE_STEPS:
            raise RequestError(f"num_steps is {num_steps}: it must be from 1 to {MAX_PROFILE_STEPS}", "num_steps")
        if not 0 < seconds <= MAX_PROFILE_SECONDS:
            text = f"seconds is {seconds:g}: it must be above 0 and at most {MAX_PROFILE_SECONDS:g}"
            raise RequestError(text, "seconds")
        return await self._profiling.record(num_steps, seconds, chosen, with_trace=with_trace)

    async def _load_adapter(self, client: int, name: str, path: str = "", in_place: bool = False) -> Adapter:
        """Load a LoRA adapter; see `Adapters.load`."""
        del client
        return await self._adapters.load(name, path, in_place=in_place)

    def _unload_adapter(self, client: int, name: str) -> None:
        """Remove an adapter's name; requests that have begun go on."""
        del client
        self._adapters.unload(name)

    def _list_adapters(self, client: int) -> list[dict[str, Any]]:
        """Each adapter with its running sequences and waiting requests, also those that only these use."""
        del client
        counts = {number: (running, waiting) for number, running, waiting in self._scheduler.adapter_counts()}
        return self._adapters.reports(counts)

    def _pause(self, client: int, mode: str = "abort", clear_cache: bool = True) -> Awaitable[None]:
        """Pause the scheduler as `mode` says, from the next plan on; the answer comes when nothing runs.

        Unless requests are kept, `clear_cache` forgets all cached prefixes then.
        """
        _check_mode(mode, PAUSE_MODES)
        if mode == "wait":  # It lets requests end.
            self._sleeping.check_awake()
        clears = clear_cache and mode != "keep"
        return self._settle(self._pausing.pause(cast(PauseMode, mode)), client if clears else None)

    async def _settle(self, paused: Awaitable[None], clears_for: int | None) -> None:
        await paused
        if clears_for is not None and (reset := self._reset_prefix_cache(clears_for)) is not None:
            await reset

    def _resume(self, client: int) -> None:
        """End a pause, if there is one."""
        del client
        self._sleeping.check_awake()
        self._pausing.resume()

    def _is_paused(self, client: int) -> bool:
        """Whether the scheduler is paused."""
        del client
        return self._pausing.is_paused

    async def _load_weights(self, client: int, path: str) -> str:
        """Load another version of the weights beside this one; see `Weights.load`."""
        del client
        return await self._weights.load(path)

    async def _load_arrays(self, client: int, path: str, arrays: list[SharedArray]) -> str:
        """Load arrays in shared memory in the place of some tensors; see `Weights.load_arrays`."""
        del client
        return await self._weights.load_arrays(path, arrays)

    async def _collective_rpc(self, client: int, method: str) -> list[Any]:
        """Call a method of every rank, one of `RANK_METHODS`; returns the results in rank order."""
        del client
        if method not in RANK_METHODS:
            raise RequestError(f"ranks have no method {method!r:.80}, only {', '.join(RANK_METHODS)}", "method")
        try:
            return await self._executor.collective(RANK_METHODS[method])
        except EngineDeadError as error:
            raise RequestError(f"{method}: {error}") from None

    async def _switch_weights(self, client: int, version: str, mode: str = "finish") -> None:
        """Compute with a version that was loaded; see `Weights.switch`."""
        del client
        _check_mode(mode, SWITCH_MODES)
        await self._weights.switch(version, cast(SwitchMode, mode))

    async def _drop_weights(self, client: int) -> None:
        """Forget a version that was loaded and not switched to."""
        del client
        await self._weights.drop()

    async def _sleep(self, client: int, level: int = 1, mode: str = "abort") -> None:
        """Give memory back; see `Sleeping.sleep`."""
        del client
        _check_mode(mode, PAUSE_MODES)
        await self._sleeping.sleep(level, cast(PauseMode, mode))

    async def _wake_up(self, client: int, tags: list[str] | None = None) -> None:
        """Take the memory again; see `Sleeping.wake_up`."""
        del client
        await self._sleeping.wake_up(tags)

    def _is_sleeping(self, client: int) -> bool:
        """Whether memory was given back."""
        del client
        return self._sleeping.is_sleeping

    def _check_events(self) -> None:
        if not self._config.cache.enable_kv_cache_events:
            raise RequestError("the engine keeps no events: start it with enable_kv_cache_events")


def _checked_log_level(level: object) -> str:
    if not isinstance(level, str) or level.upper() not in LOG_LEVELS:
        raise RequestError(f"{LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}, got {level!r:.80}")
    return level.upper()


def _with_ages(report: dict[str, Any], now: float) -> dict[str, Any]:
    """A report with ages in place of times, as clocks differ between processes."""
    scheduled_at, ended_at = report.pop("scheduled_at"), report.pop("ended_at")
    report["age"] = now - report.pop("arrival")
    report["scheduled_age"] = None if scheduled_at is None else now - scheduled_at
    report["ended_age"] = None if ended_at is None else now - ended_at
    return report


def _checked(call: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """The arguments, converted to the types in the method's signature.

    Raises:
        TypeError: there are too few or too many, or one has another type.
    """
    bound = inspect.signature(call).bind(*args)
    kinds = get_type_hints(call)
    for name, value in bound.arguments.items():
        try:
            # The wire has bytes as such, so text is not accepted as base64 for bytes.
            bound.arguments[name] = msgspec.convert(value, kinds[name], builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise TypeError(f"{name}: {error}") from None
    return bound.args


def _check_mode(mode: str, modes: Sequence[str]) -> None:
    if mode not in modes:
        raise RequestError(f"mode must be one of {', '.join(modes)}, got {mode!r:.80}", "mode")
