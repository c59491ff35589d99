"""The named calls from a client to its cores outside the streams: figures, reports, settings, pins, events, profiles.

Knows neither requests nor placement.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from pyllm.client.adapter_lists import AdapterLists, merged_reports
from pyllm.client.cores import Core, Cores
from pyllm.client.pending_calls import Calls, converted
from pyllm.client.prompt_tokens import Prompt, pack_tokens
from pyllm.client.reports import AdapterReport, BlockOwners, Decision, KVEvents, RequestReport, TenantReport
from pyllm.client.weight_updates import WeightUpdates
from pyllm.errors import EngineDeadError, ProfileRunningError, RequestError
from pyllm.kv_transfer import summed
from pyllm.wire.messages import MAX_REQUEST_REPORTS, Adapter, Call, Reply, SharedArray
from pyllm.wire.profiles import ProfileOutcome

CALL_TIMEOUT = 10.0
# Seconds in which requests that run must end before a pause.
PAUSE_TIMEOUT = 3600.0
_LOOK = 0.05  # seconds between two looks at a core without a connection
PROFILE_GRACE = 60.0  # seconds beyond a profile's own, for ranks to begin and to add up times

T = TypeVar("T")


class CoreCalls:
    """Calls with typed results. `core` is an index from `EngineClient.cores`.

    With None, sums cover all ready cores, changes apply to all, and other calls go to one ready core. `check_alive`
    raises if the client is not connected. `on_adapters` is called when requests that wait for an adapter may be sent,
    and `has_waiting` tells whether requests wait that have begun with a core's weights.
    """

    def __init__(
        self,
        cores: Cores,
        calls: Calls,
        ids: Iterator[int],
        check_alive: Callable[[], None],
        *,
        on_adapters: Callable[[], None],
        has_waiting: Callable[[Core], bool],
    ) -> None:
        self._adapter_lists = AdapterLists(cores, self._call, on_adapters)
        self._weight_updates = WeightUpdates(cores, self._call, has_waiting)
        self._check_alive = check_alive
        self._cores = cores
        self._calls = calls
        self._ids = ids
        self._last_change = 0

    async def call(
        self,
        method: str,
        *args: Any,
        timeout: float = CALL_TIMEOUT,  # noqa: ASYNC109 - every call on the wire has a deadline
        core: int | None = None,
    ) -> Any:
        """Call a method of one core by name, outside the streams; the methods below add types.

        Raises:
            RequestError: the core refused, there is no core with this index, or an argument cannot be sent; the text
                says why.
            TimeoutError: no answer within `timeout` seconds.
            EngineDeadError: the core is gone; the call is not repeated on another one.
        """
        self._check_alive()
        return await self._call(self._core(core), method, args, timeout)

    async def stats(self, core: int | None = None) -> dict[str, int]:
        """Gauges and counters of the scheduler and the core, summed over all cores unless one is named.

        This method and those below raise as `call` does.
        """
        if core is not None:
            return await self._ask(dict[str, int], "stats", core=core)
        return summed((await self.core_stats()).values())

    async def core_stats(self) -> dict[int, dict[str, int]]:
        """`stats` of each core that is ready, by its index."""
        return await self._ask_all(dict[str, int], "stats")

    async def requests(
        self, limit: int = MAX_REQUEST_REPORTS, name: str | None = None, *, core: int | None = None
    ) -> list[RequestReport]:
        """All clients' requests: the live ones in order of arrival, then the last 1,000 that have ended, latest first,
        including those that ended before a core was restarted. At most `limit`, and 2,000; with a `name` only requests
        of that `SchedulingParams.name`.
        """
        if core is not None:
            reports = {core: await self._ask(list[RequestReport], "requests", limit, name, core=core)}
        else:
            reports = await self._ask_all(list[RequestReport], "requests", limit, name)
        merged = [
            msgspec.structs.replace(report, core=index) if index else report
            for index, of_core in reports.items()
            for report in of_core
        ]
        if len(reports) > 1:
            merged.sort(key=lambda each: (0, -each.age) if each.ended_age is None else (1, each.ended_age))
        return merged[: min(limit, MAX_REQUEST_REPORTS)]

    async def block_owners(self, *, core: int | None = None) -> BlockOwners:
        """The number of KV blocks on the device by owner."""
        if core is not None:
            return await self._ask(BlockOwners, "block_owners", core=core)
        reports = (await self._ask_all(BlockOwners, "block_owners")).values()
        tenants: Counter[str] = Counter()
        for report in reports:
            tenants.update(report.tenants)
        others = (sum(getattr(report, name) for report in reports) for name in ("pinned", "in_transit", "free"))
        return BlockOwners(dict(tenants), *others)

    async def decisions(self, limit: int = 100, *, core: int | None = None) -> list[Decision]:
        """The decisions of the last steps, oldest first; the core keeps the last 1,024."""
        return await self._ask(list[Decision], "decisions", limit, core=core)

    async def tenants(self, *, core: int | None = None) -> list[TenantReport]:
        """The service that each tenant got under the policy `fair`; other policies report one tenant without a name."""
        if core is not None:
            return await self._ask(list[TenantReport], "tenants", core=core)
        sums: dict[str, TenantReport] = {}
        for reports in (await self._ask_all(list[TenantReport], "tenants")).values():
            for tenant, service, num_waiting in map(msgspec.structs.astuple, reports):
                before = sums.get(tenant, TenantReport(tenant, 0, 0))
                sums[tenant] = TenantReport(tenant, before.service + service, before.num_waiting + num_waiting)
        return list(sums.values())

    async def reconfigure(self, /, **changes: Any) -> dict[str, Any]:
        """Change settings of the scheduler from the next step on; returns all changeable settings with the new values.

        Names are those of the flags: `scheduling_policy`, `tenant_weights`, `watermark`, `max_num_batched_tokens`...,
        and `log_level`, unless the core runs in this process. If one is refused, none changes. A restarted core keeps
        the changes. They apply to every core.
        """
        return next(iter((await self._ask_all(dict[str, Any], "reconfigure", changes)).values()))

    async def profile(
        self,
        num_steps: int = 20,
        seconds: float = 30.0,
        *,
        with_trace: bool = False,
        ranks: Sequence[int] | None = None,
        core: int | None = None,
    ) -> ProfileOutcome:
        """Record the next steps on `ranks`, or all; it ends after `seconds` with the steps so far, possibly none.

        At most 100 steps and 60 seconds.

        Raises:
            ProfileRunningError: a profile is already running, for this client or another.
            EngineDeadError: there is no core, or the core or its workers died meanwhile.
            RequestError: a number is out of its range.
        """
        try:
            arguments = (num_steps, seconds, with_trace, ranks)
            value = await self.call("profile", *arguments, timeout=seconds + PROFILE_GRACE, core=core)
        except (EngineDeadError, TimeoutError) as error:
            raise EngineDeadError(f"there is no profile: {error}") from None
        outcome = converted(value, ProfileOutcome, "profile")
        if outcome.ended_by == "running":
            raise ProfileRunningError(outcome.reason)
        if outcome.ended_by == "interrupted":
            text = f"the profile was interrupted after {outcome.seconds:.1f} s"
            raise EngineDeadError(f"{text}: {outcome.reason}; ask for another one when the engine is ready")
        return outcome

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, on the device and the host; running requests keep their blocks."""
        await self._ask_all(None, "reset_prefix_cache")

    async def pause_generation(
        self,
        mode: str = "abort",
        *,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
        timeout: float = PAUSE_TIMEOUT,  # noqa: ASYNC109 - as in `call`
    ) -> None:
        """Pause every core, and return when nothing runs. Requests that come meanwhile wait in the queue.

        With `mode` "abort" all requests end at once, also those in the queue, with the finish reason `abort`; with
        "wait" those that have begun end first, and the others wait; with "keep" all stay where they are, and go on
        after `resume_generation`. `clear_cache` forgets all cached prefixes, except with "keep".
        `wait_for_inflight_requests` is vLLM's older name of "wait". A restarted core stays paused, and one that
        restarts meanwhile is paused when it is ready.

        Raises:
            RequestError: there is no such mode, or the engine was resumed meanwhile.
            TimeoutError: requests still run after `timeout` seconds; the pause stays.
        """
        mode = "wait" if wait_for_inflight_requests else mode
        await self._change_all("pause", mode, clear_cache, seconds=timeout)

    async def resume_generation(self) -> None:
        """End the pause of every core; without one nothing changes."""
        await self._change_all("resume")

    async def is_paused(self) -> bool:
        """Whether all cores are paused."""
        return all((await self._ask_all(bool, "is_paused")).values())

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Pause every core, as `pause_generation` does, and give back the memory of the KV cache; level 2: all of it.

        At level 2 the weights are dropped, too, and at level 1 on a GPU, where they are loaded again from their files.
        All keys and values are forgotten. Requests wait until `wake_up`.

        Raises:
            RequestError: the engine cannot sleep, as it has a KV store.
        """
        await self._change_all("sleep", level, mode, seconds=PAUSE_TIMEOUT)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again, all of it or that of `tags` ("weights", "kv_cache"); with all of it, generation goes on.

        Raises:
            RequestError: there is no such tag, or the weights' files have changed; the engine sleeps on.
        """
        await self._change_all("wake_up", None if tags is None else list(tags), seconds=PAUSE_TIMEOUT)

    async def is_sleeping(self) -> bool:
        """Whether any core sleeps."""
        return any((await self._ask_all(bool, "is_sleeping")).values())

    async def update_weights(self, path: str, mode: str = "finish") -> str:
        """Compute with another version of the weights, on every core; returns the version, a digest.

        `path` is a folder or file of the same model on the cores' machines, or a repository of the hub. It is loaded
        beside the weights that compute, and checked, before any core switches; where memory is short, in their place.
        With `mode` "finish" requests that have begun end with the weights before, and the others wait for that; with
        "continue" they go on with the new weights, their keys and values computed again; with "abort" they end.

        Raises:
            RequestError: it cannot be used, and the reason; all cores go on with the weights before.
            EngineDeadError: no core is ready.
            TimeoutError: it takes longer than an hour.
        """
        self._check_alive()
        return await self._weight_updates.update(("load_weights", (path,)), mode)

    async def update_arrays(self, path: str, arrays: Sequence[SharedArray], mode: str = "finish") -> str:
        """Replace some tensors by arrays in shared memory of the cores' machine; otherwise like `update_weights`.

        `arrays` are in the file at `path`, under the names of tensors in the model's files. The memory must stay as it
        is until they are replaced, as new workers read it again.
        """
        self._check_alive()
        return await self._weight_updates.update(("load_arrays", (path, tuple(arrays))), mode)

    async def collective_rpc(self, method: str, *, core: int | None = None) -> list[Any]:
        """Call a method of every rank: reload_weights, statistics, instruction_set, weights_room.

        Returns the results of all ranks, core after core.

        Raises:
            RequestError: ranks have no method of this name.
        """
        if core is not None:
            return list(await self.call("collective_rpc", method, timeout=PAUSE_TIMEOUT, core=core))
        answers = await self._ask_all(list[Any], "collective_rpc", method, seconds=PAUSE_TIMEOUT)
        return [each for of_core in answers.values() for each in of_core]

    @property
    def weights_version(self) -> str:
        """The version of the weights that new requests are computed with; empty for those of the start."""
        return self._cores.model.weights_version

    async def pin(self, name: int, prompt: Prompt, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> int:
        """Protect the full blocks of a prefix from eviction, also those computed later; returns their number per core.

        The caller chooses `name`, for `unpin`; requests of this tenant, salt and adapter can use the prefix.
        """
        tokens = pack_tokens(prompt).tobytes()
        return max((await self._ask_all(int, "pin", name, tokens, tenant, cache_salt, adapter)).values())

    async def unpin(self, name: int) -> bool:
        """Allow a pinned prefix to be evicted. False: there is no such pin."""
        return any((await self._ask_all(bool, "unpin", name)).values())

    @property
    def served_adapters(self) -> tuple[Adapter, ...] | None:
        """The LoRA adapters that requests may name, as far as the client knows; None if the engine serves none."""
        return self._adapter_lists.served

    def find_adapter(self, name: str) -> Adapter | None:
        """The adapter of this name, if requests may name it."""
        return self._adapter_lists.find(name)

    async def load_adapter(self, name: str, path: str = "", in_place: bool = False) -> Adapter:
        """Load a LoRA adapter into every core: a folder or file on the cores' machines, or a repository of the hub.

        Without a `path` it is one that `lora_folder` or `lora_repositories` has. With `in_place` it may replace one of
        the same name: requests that have begun end with the old one. An adapter that is there already stays as it is.

        Raises:
            RequestError: it cannot be used, and the reason.
            EngineDeadError: no core is ready.
            TimeoutError: it takes longer than ten minutes.
        """
        self._check_alive()
        return await self._adapter_lists.load(name, path, in_place=in_place)

    async def unload_adapter(self, name: str) -> None:
        """Remove a LoRA adapter; requests that have begun end with it.

        Raises:
            RequestError: there is no adapter of this name.
            EngineDeadError: no core is ready.
        """
        self._check_alive()
        await self._adapter_lists.unload(name)

    async def adapters(self, *, core: int | None = None) -> list[AdapterReport]:
        """Each LoRA adapter with the number of its requests, also those that only begun requests still use."""
        if core is not None:
            return await self._ask(list[AdapterReport], "adapters", core=core)
        return merged_reports((await self.core_adapters()).values())

    async def core_adapters(self) -> dict[int, list[AdapterReport]]:
        """`adapters` of each core that is ready, by its index."""
        return await self._ask_all(list[AdapterReport], "adapters")

    async def kv_events(self, first: int = 0, *, tokens: bool = True, core: int | None = None) -> KVEvents:
        """Blocks that the prefix cache stored and evicted, from event number `first` on; at most 10,000 events a call.

        Any number of clients may ask. Without `tokens`, events name blocks only by their hashes. Refused unless the
        core was started with `--enable-kv-cache-events`.
        """
        return await self._ask(KVEvents, "kv_events", first, tokens, core=core)

    async def kv_snapshot(self, *, tokens: bool = True, core: int | None = None) -> KVEvents:
        """All blocks in the prefix cache now, for a client that begins to listen or has missed events."""
        return await self._ask(KVEvents, "kv_snapshot", tokens, core=core)

    def _core(self, index: int | None, parameter: str = "core") -> Core:
        if index is None:
            return self._cores.any_ready
        core = self._cores.get(index)
        if core is None:
            known = ", ".join(str(each.index) for each in self._cores.all())
            raise RequestError(f"there is no core {index}; there are: {known}", parameter)
        return core

    async def _ask(self, kind: type[T], method: str, *args: Any, core: int | None = None) -> T:
        return converted(await self.call(method, *args, core=core), kind, method)

    async def _ask_all(
        self, kind: type[T] | None, method: str, *args: Any, seconds: float = CALL_TIMEOUT
    ) -> dict[int, T]:
        """Ask every ready core. Cores lost meanwhile are left out; raises EngineDeadError if all are lost."""
        self._check_alive()
        cores = [core for core in self._cores.all() if core.is_open] or [self._cores.any_ready]
        return await self._gather(kind, method, cores, [self._call(core, method, args, seconds) for core in cores])

    async def _change_all(self, method: str, *args: Any, seconds: float = CALL_TIMEOUT) -> None:
        """Call a method of every core, and of the successor of one that is lost, which would know nothing of it.

        A later change, or a core that refuses this one, ends the wait for successors.
        """
        self._check_alive()
        cores = [core for core in self._cores.all() if core.is_open or core.awaits_successor]
        cores = cores or [self._cores.any_ready]
        self._last_change += 1
        deadline = asyncio.get_running_loop().time() + seconds
        changes = [self._change(core, method, args, self._last_change, deadline) for core in cores]
        await self._gather(None, method, cores, changes)

    async def _change(self, core: Core, method: str, args: tuple[Any, ...], number: int, deadline: float) -> Any:
        while True:
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await self._call(core, method, args, max(left, 0.0))
            except RequestError:
                self._last_change += 1
                raise
            except EngineDeadError:
                if number != self._last_change or not core.awaits_successor or left <= 0:
                    raise
            await asyncio.sleep(_LOOK)
            self._check_alive()
            if self._cores.get(core.index) is not core:
                raise EngineDeadError(f"core {core.index} has left")

    async def _gather(
        self, kind: type[T] | None, method: str, cores: Sequence[Core], calls: Sequence[Coroutine[Any, Any, Any]]
    ) -> dict[int, T]:
        values = await asyncio.gather(*calls, return_exceptions=len(calls) > 1)
        answers: dict[int, T] = {}
        for core, value in zip(cores, values, strict=True):
            if not isinstance(value, BaseException):
                answers[core.index] = converted(value, kind, method)
            elif not isinstance(value, EngineDeadError):
                raise value
        if not answers:
            raise EngineDeadError(str(values[0]))
        return answers

    async def _call(self, core: Core, method: str, args: tuple[Any, ...], seconds: float = CALL_TIMEOUT) -> Any:
        connection = core.connection
        if not connection.is_ready:
            raise EngineDeadError(connection.condition().reason)
        number = next(self._ids)
        answer = self._calls.open(number, core.index)
        try:
            connection.post(Call(connection.epoch, number, method, args))
            async with asyncio.timeout(seconds):
                reply: Reply = await answer
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"the arguments of the call {method} cannot be sent: {error}") from None
        except TimeoutError:
            raise TimeoutError(f"the core did not answer {method!r} within {seconds:g} s") from None
        finally:
            self._calls.close(number)
        if not reply.ok:
            raise RequestError(str(reply.value))
        return reply.value
