"""Makes an `EngineCore` of its parts: the one place that knows which part needs which.

Starts nothing and sends nothing, except that it begins the recording and restores KV blocks in host memory.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from pyllm._rust import Scheduler
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.core.adapters import Adapters, AdapterSource, ReadAdapter
from pyllm.core.calls import Calls
from pyllm.core.clients import Clients
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.faults.isolation_reporter import IsolationReporter
from pyllm.core.faults.lost_requests import LostRequests
from pyllm.core.faults.recovery import Recovery
from pyllm.core.inbox import OTHER_WEIGHTS, Inbox
from pyllm.core.kept_state import KeptState
from pyllm.core.kv.kv_transfers import KVTransfers
from pyllm.core.load_reports import LoadReporter
from pyllm.core.loop import CoreParts, EngineCore
from pyllm.core.pausing import Pausing
from pyllm.core.policy_plugins import Policy
from pyllm.core.profiling import Profiling
from pyllm.core.sleeping import Sleeping
from pyllm.core.stage import Stage
from pyllm.core.steps_in_flight import StepsInFlight
from pyllm.core.weight_versions import Weights, WeightsSource, versioned
from pyllm.kv_transfer import SchedulerConnector
from pyllm.recording import Recording
from pyllm.supervision import step_trace
from pyllm.supervision.restarts import RestartBudget
from pyllm.wire.ipc import Sender
from pyllm.wire.messages import AdapterList, CoreMessage, Deltas, Ready, Rejected, WeightsChanged
from pyllm.wire.supervision_messages import Kept

NOTHING_KEPT = Kept()


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreSetup:
    """A core before it runs: its started executor, its scheduler, and the facts that the start has found.

    `ready` answers a client's hello. `depth` is the number of steps in flight: with 2, step k+1 is planned before step
    k's tokens are known; a pipeline has one step per stage, with different sequences. `policy` is a scheduling policy
    of another package, if one is set. `connector` moves KV blocks to and from a store. `sampling_plugins` names the
    logits processors and samplers that workers can load. `token_seconds` is the measured upper bound per token in a
    step, 0 if none was measured. `host_blocks` are the KV blocks in host memory that have outlived an earlier core,
    and `earlier` is the state that it has left. `adapters` are those that the ranks have, read from `adapter_source`;
    without a source the core serves none. `weights_source` has other versions of the `weights` that the ranks have.
    """

    scheduler: Scheduler
    executor: Executor
    ready: Ready
    config: EngineConfig
    depth: int = 1
    policy: Policy | None = None
    connector: SchedulerConnector | None = None
    sampling_plugins: Collection[str] = ()
    token_seconds: float = 0.0
    host_blocks: bytes = b""
    earlier: Kept = NOTHING_KEPT
    adapter_source: AdapterSource | None = None
    adapters: Sequence[ReadAdapter] = ()
    weights_source: WeightsSource | None = None
    weights: Checkpoint | None = None
    on_crash: Callable[[str, Mapping[str, bytes]], object] = lambda name, report: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The process around a core, as far as the core calls it. The defaults suit a core within an application.

    `on_alone(True)` is called when a step runs one suspect alone, so that it is to blame for a crash of this process,
    and `on_alone(False)` when that ends. `publish` is called before each step. `keep` is called with state for the
    next core. `set_log_level` is None in a process that is not the core's own. `memory`, `step_trace.size` zero bytes,
    keeps a trace of the last steps after this process ends.
    """

    on_alone: Callable[[bool], object] = lambda is_alone: None
    publish: Callable[[], object] = lambda: None
    keep: Callable[[Kept], object] = lambda kept: None
    set_log_level: Callable[[str], None] | None = None
    memory: mmap | bytearray | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


ALONE = Surroundings()


def compose(setup: CoreSetup, sender: Sender[CoreMessage], around: Surroundings = ALONE) -> EngineCore:
    """The core, with the recording that the configuration asks for. `sender` takes its messages to clients.

    Raises:
        ConfigError: the recording's file cannot be made.
    """
    scheduler, executor, config = setup.scheduler, setup.executor, setup.config
    clock, sleep, epoch = around.clock, around.sleep, setup.ready.epoch
    core: EngineCore
    recording = _begin_recording(scheduler, config)
    clients = Clients(sender, lambda client: _take_deltas(scheduler, epoch, client), scheduler.drop_client)
    kept = KeptState(scheduler, setup.earlier, around.keep)
    inventory = HostInventory(scheduler, executor)
    size = step_trace.size(config.scheduler.max_num_seqs)
    memory = bytearray(size) if around.memory is None else around.memory
    in_flight = StepsInFlight(
        scheduler, executor, clock=clock, memory=memory, epoch=epoch, token_seconds=setup.token_seconds
    )
    pausing = Pausing(
        scheduler,
        kept,
        num_in_flight=lambda: len(in_flight),
        abort=scheduler.abort,
        announce=lambda: stage.send_changes(),  # noqa: PLW0108 - the stage is made below, with this pausing
        wake=lambda: core.wake(),  # noqa: PLW0108 - the core is made below
    )
    profiling = Profiling(executor, lambda: len(in_flight), clock=clock, sleep=sleep)
    transfers = KVTransfers(
        scheduler,
        executor,
        setup.connector,
        clock=clock,
        sleep=sleep,
        fail=lambda client, request, reason: core.fail(client, request, Rejected(request, "error", reason)),
    )
    adapters = Adapters(
        scheduler,
        executor,
        setup.adapter_source,
        setup.adapters,
        announce=lambda: _announce(adapters, clients, kept, epoch),
        wake=lambda: core.wake(),  # noqa: PLW0108 - the core is made below
        fail=lambda client, request, reason: core.fail(client, request, Rejected(request, "error", reason)),
    )
    changing = asyncio.Lock()  # of the ranks' memory
    sleeping = Sleeping(
        scheduler,
        executor,
        pausing,
        changing=changing,
        refusal=_sleep_refusal(config),
        on_device=config.device.device == "cuda",
    )
    weights = Weights(
        scheduler,
        executor,
        setup.weights_source,
        setup.weights,
        pausing=pausing,
        changing=changing,
        kept=kept,
        inventory=inventory,
        refuse=lambda client, request: core.fail(client, request, Rejected(request, "weights", OTHER_WEIGHTS)),
        announce=lambda version, continues: _announce_weights(
            WeightsChanged(setup.ready.epoch, version, continues), sleeping, inbox, scheduler, clients
        ),
    )
    calls = Calls(
        scheduler,
        config,
        setup.policy,
        lambda: core.stats_for_client(),  # noqa: PLW0108 - the core is made below, with these calls
        clock,
        profiling=profiling,
        inventory=inventory,
        executor=executor,
        adapters=adapters,
        pausing=pausing,
        weights=weights,
        sleeping=sleeping,
        kept=kept,
        set_log_level=around.set_log_level,
    )
    recovery = Recovery(
        scheduler,
        executor,
        RestartBudget(config.recovery.max_restarts),
        shrink=calls.halve_budget,
        connect=transfers.connect,
        restore_adapters=adapters.restore,
        restore_sleep=sleeping.restore,
        inventory=inventory,
        clock=clock,
        sleep=sleep,
    )
    stage = Stage(clients, recovery, in_flight, pausing)
    lost_requests = LostRequests(scheduler)
    load_reporter = LoadReporter(scheduler, clients, lost_requests, epoch=epoch, clock=clock)
    inbox = Inbox(
        scheduler,
        clients=clients,
        calls=calls,
        quarantine=recovery.quarantine,
        stage=stage,
        load_reporter=load_reporter,
        lost_requests=lost_requests,
        transfers=transfers,
        adapters=adapters,
        ready=setup.ready,
        clock=clock,
        sampling_plugins=setup.sampling_plugins,
    )
    core = EngineCore(
        CoreParts(
            scheduler=scheduler,
            executor=executor,
            config=config,
            epoch=epoch,
            depth=setup.depth,
            clock=clock,
            publish=around.publish,
            on_crash=setup.on_crash,
            recording=recording,
            clients=clients,
            inbox=inbox,
            in_flight=in_flight,
            transfers=transfers,
            adapters=adapters,
            pausing=pausing,
            weights=weights,
            sleeping=sleeping,
            recovery=recovery,
            isolation=IsolationReporter(recovery.quarantine, scheduler, epoch, clients.post, around.on_alone),
            stage=stage,
            load_reporter=load_reporter,
            kept=kept,
            profiling=profiling,
        )
    )
    if setup.host_blocks:  # after the settings that clients of an earlier core have changed
        scheduler.restore_host_blocks(setup.host_blocks)
    return core


def _begin_recording(scheduler: Scheduler, config: EngineConfig) -> Recording | None:
    """The recording of the scheduler's calls, if the configuration asks for one. Raises ConfigError."""
    if not config.scheduler.scheduler_recording:
        return None
    recording = Recording(Path(config.scheduler.scheduler_recording), scheduler.take_recording)
    scheduler.start_recording()
    return recording


def _announce(adapters: Adapters, clients: Clients, kept: KeptState, epoch: int) -> None:
    """Tell clients, and the next core, which adapters there are now."""
    kept.serve(adapters.served)
    clients.post_all(AdapterList(epoch, adapters.listed or ()))


def _announce_weights(
    change: WeightsChanged, sleeping: Sleeping, inbox: Inbox, scheduler: Scheduler, clients: Clients
) -> None:
    """Tell clients the version of the weights, after all output of the one before."""
    sleeping.weights_loaded()
    inbox.ready = versioned(inbox.ready, change.version)
    clients.deliver(scheduler.pending_clients())
    clients.post_all(change)


def _sleep_refusal(config: EngineConfig) -> str:
    """The reason why the engine cannot sleep; empty if it can."""
    if config.kv_transfer.kv_transfer_config is not None:
        return "an engine with a KV store or connector cannot sleep: it uses the memory that would be given back"
    return ""


def _take_deltas(scheduler: Scheduler, epoch: int, client: int) -> Deltas | None:
    """A client's new output as a message."""
    columns = scheduler.take_deltas(client)
    return None if columns is None else Deltas(epoch, *columns)
