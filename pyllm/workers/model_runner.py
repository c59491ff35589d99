"""Runs one rank's share of the model: loads it, sizes the KV cache, executes plans, answers calls.

Knows no process and no socket (`workers/worker_process.py`), and of scheduling only the plan.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec
from pyllm_kernels import AttentionShape
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.tensors import Tensor

from pyllm.checkpoint.cache import weights_digest
from pyllm.config.engine_settings import MIN_CPU_KV_CACHE_BYTES
from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import coordinates_of, num_ranks
from pyllm.errors import ConfigError, ProtocolError
from pyllm.families.kv_layout import kv_groups
from pyllm.families.stage_layout import split_into_stages
from pyllm.families.state_layout import fitting_states
from pyllm.kv_transfer import ConnectorContext, KVBlocks, make_worker_connector
from pyllm.supervision.process_memory import is_out_of_memory
from pyllm.wire.messages import Sampled, Step
from pyllm.wire.profiles import RankProfile
from pyllm.workers.adapters.rank_adapters import RankAdapters
from pyllm.workers.attention_backends import check_layers, fits_graphs, load_attention_backend
from pyllm.workers.causal_model import CausalModel
from pyllm.workers.devices.configured import DTYPES, configured_kernels, worker_device
from pyllm.workers.devices.device import Device
from pyllm.workers.forward_pass import CHECKED_SEQUENCES, ForwardPass, Limits
from pyllm.workers.kv.kv_blocks import CpuBlocks
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.kv.kv_memory import KVMemory
from pyllm.workers.kv.rank_transfers import RankTransfers
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.layers.forward_context import AttentionHook
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.stage_link import StageLink
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.rank_profile import Pending, StepProfiler
from pyllm.workers.rank_weights import RankWeights, free_unused
from pyllm.workers.sampling.token_sampler import Draw
from pyllm.workers.sparse_attention.kv_selectors import SelectorInputs, load_kv_selector
from pyllm.workers.step.attention_batch import AttentionGroup
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots
from pyllm.workers.step.step_rows import written_blocks
from pyllm.workers.step.text_pairs import TextPairs
from pyllm.workers.step_sampler import StepSampler
from pyllm.workers.warm_up import launch_every_kernel, run_largest_step

if TYPE_CHECKING:
    from pyllm.workers.cuda_graphs import Capture
    from pyllm.workers.sampling_graphs import DeviceSampler

P = ParamSpec("P")
R = TypeVar("R")


def _computing(method: "Callable[Concatenate[ModelRunner, P], R]") -> "Callable[Concatenate[ModelRunner, P], R]":
    """Run a method of the runner in the context of the device's computation."""

    def run(self: "ModelRunner", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.computing():
            return method(self, *args, **kwargs)

    update_wrapper(run, method)
    return run


class ModelRunner:
    """One rank: call `load`, then `call("allocate", (num_blocks, num_host_blocks))`, then `run` for each step.

    `group` has the ranks of this rank's pipeline stage. `host_memory` is the descriptor of memory that outlives this
    process, for the host pool; without it the pool uses this process's memory. `device` None is the configured device.
    """

    def __init__(
        self,
        config: WorkerConfig,
        group: RankGroup,
        clock: Callable[[], float] = time.perf_counter,
        *,
        host_memory: int | None = None,
        device: Device | None = None,
    ) -> None:
        self._clock = clock
        engine = config.engine
        self._engine = engine
        self._rank = config.rank
        self._spec = config.checkpoint.spec
        self._link = StageLink(config.rank, engine.parallel, group)
        num_layers, tied = len(self._spec.layers), self._spec.tie_word_embeddings
        num_stages = engine.parallel.pipeline_parallel_size
        stages = split_into_stages(config.checkpoint.tensors, num_layers, num_stages, tied, self._spec.tied_layers)
        self._stage = stages[coordinates_of(config.rank, engine.parallel).stage]
        stage = self._stage
        device = worker_device(config) if device is None else device
        widest = max((attention.head_size for attention in self._spec.attentions), default=0)
        kernels = configured_kernels(engine, device, widest)
        attention = load_attention_backend(engine.device.attention_backend, device, engine.device.kernel_backend)
        check_layers(engine.device.attention_backend, attention, self._spec)
        self._kernels = kernels.replaced(paged_attention, attention.attend)
        self._prepare_attention = attention.prepare
        is_eager = engine.device.enforce_eager or self._spec.transformers is not None
        self._may_capture = fits_graphs(device, kernels, attention) and not is_eager
        self._placement = WeightPlacement(
            group,
            DTYPES[engine.model.dtype],
            device,
            self._kernels,
            engine.model.quantization,
            by_expert=engine.parallel.enable_expert_parallel,
        )
        assert engine.model.max_model_len is not None, "the configuration was not resolved"
        self._max_model_len = engine.model.max_model_len
        hybrid = not engine.cache.disable_hybrid_kv_cache_manager
        # Every stage has block tables of all groups, as a plan has changes for all groups.
        groups = stage.groups(kv_groups(self._spec, self._max_model_len, hybrid, group.size))
        cache = engine.cache
        shape = KVCacheShape.of(self._spec, cache.block_size, group.size, DTYPES[cache.kv_cache_dtype], groups)
        self._memory = KVMemory(config, shape, groups, self._kernels, device, layers=stage.layers, clock=clock)
        max_blocks = -(-self._max_model_len // engine.cache.block_size)
        self._slots = Slots(engine.scheduler.max_num_seqs, max_blocks, device, len(groups))
        adapters: RankAdapters | None = None
        if engine.lora.enable_lora:
            limits = engine.scheduler
            adapters = RankAdapters(engine.lora, limits.max_num_batched_tokens, limits.max_num_seqs, device)
        self._weights = RankWeights(
            engine, config.checkpoint, config.rank, stage=stage, placement=self._placement, adapters=adapters
        )
        self._sampler = StepSampler(config, self._placement, self._slots)
        self._plans = PlanBuffer(device, num_groups=len(groups), pairs=TextPairs.of(self._spec))
        self._selector: KVSelector | None = None
        self._forward: ForwardPass | None = None
        self._attention_hooks: list[AttentionHook] = []
        self._host_memory = host_memory
        self._transfers: RankTransfers | None = None
        self._methods: dict[str, Callable[..., Any]] = {
            "num_blocks": self.num_blocks,
            "num_states": self.num_states,
            "num_host_blocks": self._memory.num_host_blocks,
            "num_host_states": self._memory.num_host_states,
            "state_blocks": self._memory.state_blocks,
            "allocate": self.allocate,
            "register_kv_caches": self.register_kv_caches,
            "transfer": self.transfer,
            "finish_transfers": self.finish_transfers,
            "swap_seconds": self.swap_seconds,
            "state_swap_seconds": self.state_swap_seconds,
            "host_inventory": self._memory.host_inventory,
            "forget_host_blocks": self._memory.forget_host_blocks,
            "token_seconds": self.token_seconds,
            "statistics": self.statistics,
            "instruction_set": self.instruction_set,
            "start_profile": self.start_profile,
            "stop_profile": self.stop_profile,
            "weights_room": self._weights.room,
            "begin_weights": self.begin_weights,
            "load_weights": self.load_weights,
            "switch_weights": self.switch_weights,
            "drop_weights": self._weights.forget_next,
            "sleep": self.sleep,
            "wake_weights": self.wake_weights,
        }
        if adapters is not None:
            self._methods |= {"load_adapter": self._load_adapter, "unload_adapter": self._unload_adapter}
        self._profiler: StepProfiler | None = None
        self._profile_origin = 0

    @property
    def model(self) -> CausalModel:
        """The model that computes, see `RankWeights.model`."""
        return self._weights.model

    def computing(self) -> AbstractContextManager[object]:
        """The context of the device's computation."""
        return self._placement.device.computing()

    @_computing
    def load(self, advance: Callable[[float], None] = lambda progress: None) -> None:
        """Read this rank's share of the weights, and check that the host has room for the swap space.

        `advance` is called with the fraction that is loaded.

        Raises:
            ConfigError: a file has shrunk, cannot be cut for this rank, or the host has too little memory.
        """
        # Its blocks are verified while the weights load.
        self._memory.open_host(f"{self.instruction_set()} {self._kernels.backend}", self._host_memory)
        self._weights.load(advance)
        num_positions = max(self._max_model_len, self._spec.num_positions)
        self._position_tables = PositionTables.of(self._spec, num_positions, self._placement.device)
        limits, placement = self._engine.scheduler, self._placement
        width = sum(self._spec.stage_widths)
        self._link.allocate(limits.max_num_batched_tokens, width, placement.dtype, placement.device)
        if self._spec.transformers is not None:
            self._check_isolation()

    def idle(self) -> None:
        """Begin the work that a start leaves for later: call it in a pause, once."""
        self._memory.prefault()
        self._sampler.load_grammars()

    def run(self, step: Step, frame: bytes | memoryview) -> Sampled:
        """Execute the plan in `frame`; every rank of the last stage returns the same tokens.

        Raises:
            ProtocolError: the plan is malformed, or this worker cannot execute it.
        """
        return self.begin(step, frame).answer()

    def begin(self, step: Step, frame: bytes | memoryview) -> Pending:
        """Begin a step like `run`, but do not wait for a GPU: the next step may begin before this one is answered."""
        profiler = self._profiler
        if profiler is not None and profiler.takes_steps:
            return profiler.run(step, lambda: self._begin(step, frame))
        return self._begin(step, frame)

    def _begin(self, step: Step, frame: bytes | memoryview) -> "RunningStep":
        draw = self.execute(step.step, self._plans.load(step.counts, frame), step.transfers)
        running = RunningStep(draw, self._sampler, self._transfers, step.transfers)
        if self._placement.device.type != "cuda":
            running.answer()  # The next plan overwrites this one.
        return running

    @_computing
    def execute(self, step: int, batch: Batch, transfers: bytes = b"") -> Draw:
        """Run one step: update slots and cache, run the model, sample, and start to copy the tokens to the host.

        A plan relies on this order: slot copies, slot initialisations, block-table changes, swaps to the host, swaps
        from it, block copies, then the forward pass; meanwhile the KV connector does its `transfers`. A stage before
        the last one sends its hidden states to the next stage and does not sample.
        """
        on_gpu, samples = self._placement.device.type == "cuda", self._stage.is_last
        self._slots.apply(batch)
        if (adapters := self._weights.adapters) is not None:
            adapters.apply(batch)
        if samples and not on_gpu:
            self._sampler.follow(batch)  # Before the forward pass: grammars compile in parallel with it.
        self._memory.move_blocks(batch)
        if self._transfers is not None:
            self._transfers.begin(transfers)
        if self._selector is not None:
            self._selector.blocks_written(written_blocks(batch, self._engine.cache.block_size))
        hidden = self.forward(batch) if batch.num_tokens else None
        if not samples:
            if hidden is not None:
                self._link.send(hidden)
            return Draw(step, batch, sampled=Sampled(step, b"", b""))
        if on_gpu:
            self._sampler.follow(batch)  # After the launch of the forward pass: this waits for the step before.
        if hidden is None:
            return Draw(step, batch)
        return self._sampler.draw(step, batch, hidden, self.logits, self._weights.model.embedding_of)

    def add_attention_hook(self, hook: AttentionHook) -> None:
        """Call `hook` in every layer of every step from now on.

        Raises:
            ProtocolError: the KV cache is not allocated yet.
        """
        self._ready().add_hook(hook)
        self._attention_hooks.append(hook)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states of the plan's tokens, [tokens, hidden_size]; see `ForwardPass.hidden` for a pipeline stage."""
        forward = self._ready()
        self._link.receive(batch.num_tokens)
        return forward.hidden(batch)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor | None:
        """Logits of some rows of the hidden states, [rows, vocab_size]; None on all ranks but the sampling one."""
        return self._ready().logits(hidden, rows)

    def call(self, method: str, args: tuple[Any, ...] = ()) -> Any:
        """Answer a `Control`: call the method that it names, one of those in `__init__`.

        Raises:
            ProtocolError: there is no such method.
        """
        if method not in self._methods:
            raise ProtocolError(f"a worker has no method {method!r}, only {', '.join(sorted(self._methods))}")
        return self._methods[method](*args)

    @_computing
    def num_states(self) -> int | None:
        """The number of states that fit on this rank beside KV blocks; None if no layer of this stage keeps one."""
        size, most = self._memory.state_bytes, self._engine.scheduler.max_num_seqs
        has_blocks = self._memory.shape.block_bytes > 0
        return fitting_states(self._room(), size, most, has_blocks=has_blocks) if size else None

    @_computing
    def num_blocks(self, num_states: int = 0) -> int | None:
        """The number of KV blocks that fit on this rank beside so many states; None if no layer here has any."""
        room, size = self._room() - num_states * self._memory.state_bytes, self._memory.shape.block_bytes
        return max(0, room) // size if size else None

    def _room(self) -> int:
        """Bytes for KV blocks and states: the configured ones, or those beside a full step on a GPU."""
        room = self._engine.cache.kv_cache_memory_bytes
        if room is None:
            room = self._free_device_bytes() if self._placement.device.type == "cuda" else MIN_CPU_KV_CACHE_BYTES
        return room

    @_computing
    def allocate(
        self, num_blocks: int, num_host_blocks: int = 0, num_states: int = 0, num_host_states: int = 0
    ) -> None:
        """Allocate the KV cache and the host pool, with the same numbers on every rank; time swaps, capture graphs."""
        # Before graphs, which take a share of the memory left.
        self._memory.allocate(num_blocks, num_host_blocks, num_states, num_host_states)
        if self._engine.sparse.sparse_attention:
            self._selector = self._kv_selector(self._memory.cache)
            self._may_capture = self._may_capture and self._selector.in_graphs
        if self._weights.has_model:
            self._prepare_forward()

    def _prepare_forward(self) -> None:
        """Make the forward pass of the model over the allocated cache, and capture its graphs."""
        self._forward = self._forward_pass(self._memory.cache, self._selector, self._memory.states)
        for hook in self._attention_hooks:
            self._forward.add_hook(hook)
        if self._placement.device.type == "cuda":
            from pyllm.workers.cuda_graphs import CudaCapture

            launch_every_kernel(self._forward, self._kernels, self._memory.cache)
            if self._may_capture:
                self.capture(CudaCapture())
        elif self._may_capture and self._placement.group.size == 1:  # A graph cannot hold an exchange between ranks.
            self._forward.capture_step()

    def register_kv_caches(self, namespace: str, weights: str, state_blocks: int = 0) -> None:
        """Make this rank's half of the KV connector, for blocks of this namespace (hexadecimal digits).

        `weights` is the digest of the model's files in the namespace; `state_blocks` see `ConnectorContext`.

        Raises:
            ConfigError: there is no such connector, it refuses its settings, or the files have changed.
        """
        engine, cache = self._engine, self._memory.cache
        config = engine.kv_transfer.kv_transfer_config
        if config is None:
            raise ProtocolError("a KV connector needs kv_transfer_config")
        # Other versions of the weights have hashes of their own, which keep their blocks apart.
        checkpoint = self._weights.checkpoint
        if not checkpoint.version and weights_digest(checkpoint.files) != weights:
            raise ConfigError(
                f"the files of the model ({checkpoint.files[0]} ...) are not those that this engine was started "
                "with, so its KV blocks are another model's: restore the files, or start the engine again"
            )
        context = ConnectorContext(
            namespace=bytes.fromhex(namespace),
            block_size=cache.block_size,
            num_ranks=num_ranks(engine.parallel),
            windows=tuple(group.window for group in self._memory.groups),
            state_blocks=state_blocks,
            rank=self._rank,
            cache=engine.cache,
            weights=weights,
        )
        blocks = self._kv_blocks(cache, state_blocks)
        blocks_written = None if self._selector is None else self._selector.blocks_written
        self._transfers = RankTransfers(make_worker_connector(config, context), blocks, blocks_written)
        if (hook := self._transfers.hook) is not None:
            self.add_attention_hook(hook)

    def _kv_blocks(self, cache: KVCache, state_blocks: int) -> KVBlocks:
        if self._placement.device.type != "cuda":
            return CpuBlocks(cache, self._memory.states, state_blocks)
        from pyllm.workers.kv.gpu_blocks import GpuBlocks

        return GpuBlocks(cache)

    def transfer(self, metadata: bytes) -> bytes:
        """Run the KV connector's part of a step without rows; return its `TransferResults` as MessagePack."""
        if self._transfers is None:
            raise ProtocolError("there is no KV connector: register_kv_caches comes before")
        self._transfers.begin(metadata)
        self._transfers.end(metadata)
        return msgspec.msgpack.encode(self._transfers.results())

    def finish_transfers(self) -> None:
        """Close the KV connector, which writes the blocks that it has copied; no step follows."""
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None

    @_computing
    def capture(self, capture: "Capture", sample: "DeviceSampler | None" = None) -> None:
        """Capture the forward pass and sampling for some sizes of steps, to replay; call it after `allocate`."""
        from pyllm.workers.cuda_graphs import CaptureBudget
        from pyllm.workers.sampling.sampler import sample_on_device

        placement, forward = self._placement, self._ready()
        where = placement.group, placement.device
        budget = CaptureBudget(capture, self._clock, *where, planned_bytes=self._planned_graph_bytes())
        if self._stage.is_last:
            self._sampler.capture(
                forward.head, sample or sample_on_device, capture, budget
            )  # First, as logits take the most memory.
        forward.capture_steps(capture, budget)

    def swap_seconds(self) -> float:
        """Measured seconds to move one block to the host and back; 0 without a host pool."""
        return self._memory.swap_seconds

    def state_swap_seconds(self) -> float:
        """Measured seconds to move one state to the host and back; 0 without host states."""
        return self._memory.state_swap_seconds

    @_computing
    def token_seconds(self) -> float:
        """Measured upper bound per token in seconds; 0 where it does not generalise."""
        return self._ready().time_tokens(self._clock) if self._kernels.backend == "cpu" else 0.0

    def statistics(self) -> dict[str, int]:
        """Bytes that this rank holds in its linear layers, its embedding, the KV cache and the host pool."""
        return {
            "linear_bytes": sum(packed.nbytes for packed in self.model.matrices()),
            "embedding_bytes": self.model.embedding_bytes,
            **self._memory.statistics(),
        }

    def instruction_set(self) -> str:
        """The instruction set or GPU of this machine; results depend on it, beside weights and dtype."""
        return self._placement.device.name

    @_computing
    def begin_weights(self, checkpoint: bytes, beside: bool) -> None:
        """Begin to load another version of the weights; see `RankWeights.begin`.

        If it is not `beside` the one that computes, no step may come before `switch_weights`.
        """
        self._weights.begin(checkpoint)
        if not beside:
            self._forward = None
            self._weights.drop()

    @_computing
    def load_weights(self, seconds: float) -> bool:
        """Go on loading for some seconds; see `RankWeights.advance`."""
        return self._weights.advance(seconds)

    @_computing
    def switch_weights(self) -> None:
        """Compute with the weights that are loaded from now on; blocks of the KV cache keep what they have."""
        self._weights.switch()
        self._prepare_again()

    @_computing
    def sleep(self, drops_weights: bool) -> None:
        """Free the KV cache, and the weights if asked; no step may come before both are there again."""
        self._weights.forget_next()
        self._forward = self._selector = None
        self._memory.release()
        if drops_weights:
            self._weights.drop()
        free_unused()
        if self._placement.device.type == "cuda":
            from pyllm.workers.devices.torch_device import available_bytes

            available_bytes(self._placement.device)  # Empties torch's own pool.

    @_computing
    def wake_weights(self) -> None:
        """Load the weights again that `sleep` has dropped; see `RankWeights.reload`."""
        if not self._weights.has_model:
            self._weights.reload()
            self._prepare_again()

    def _prepare_again(self) -> None:
        """Make the forward pass of other weights, and free those before."""
        self._forward = None
        if self._memory.is_allocated:
            self._prepare_forward()
        free_unused()

    def _load_adapter(self, number: int, files: Sequence[str], matrices: bytes) -> list[str]:
        assert self._weights.adapters is not None, "this method is there with adapters alone"
        return self._weights.adapters.load(number, files, matrices)

    def _unload_adapter(self, number: int) -> None:
        assert self._weights.adapters is not None, "this method is there with adapters alone"
        self._weights.adapters.unload(number)

    def start_profile(self, num_steps: int, origin: int, ranks: Sequence[int]) -> None:
        """Record the next `num_steps` steps if this rank is one of `ranks`.

        Times of a trace begin at `origin`, nanoseconds of Unix time. Call it, and `stop_profile`, on the thread that
        runs the steps.
        """
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        if self._rank in ranks:
            self._profiler, self._profile_origin = StepProfiler(num_steps, self._placement.device), origin

    def stop_profile(self, with_trace: bool) -> RankProfile | None:
        """Stop recording and return the profile, of fewer steps if no more came; None if no recording was started."""
        if self._profiler is None:
            return None
        profiler, self._profiler = self._profiler, None
        return profiler.finish(self._rank, self._profile_origin, with_trace=with_trace)

    @_computing
    def run_largest_step(self) -> None:
        """Compute and sample the step that needs the most memory."""
        forward = self._forward_pass(self._memory.temporary_cache(1), states=self._memory.temporary_states())
        run_largest_step(forward, self._placement.device, self._engine.model.max_logprobs)

    def _check_isolation(self) -> None:
        from pyllm.workers.transformers_backend.isolation import CHECKED_TOKENS, check_isolation
        from pyllm.workers.transformers_backend.model import TransformersModel

        assert isinstance(self.model, TransformersModel)
        longest = min(CHECKED_TOKENS, self._max_model_len)
        blocks_per_sequence = -(-longest // self._engine.cache.block_size)
        num_blocks = len(self._memory.groups) * CHECKED_SEQUENCES * blocks_per_sequence
        cache = self._memory.temporary_cache(num_blocks)
        try:
            check_isolation(self.model, self._forward_pass(cache).compute_chunks, longest)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError) or is_out_of_memory(error):
                raise
            name, ranks = self._spec.architecture, self._placement.group.size
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ConfigError(f"transformers' {name} does not run on {ranks} rank(s) here: {text:.200}") from error

    def _kv_selector(self, kv_cache: KVCache) -> KVSelector:
        """The selector for this stage's layers without a window, except the model's first, dense layers."""
        settings, scheduler = self._engine.sparse, self._engine.scheduler
        full = {number for number, group in enumerate(self._memory.groups) if group.window is None}
        layers = tuple(
            layer
            for layer, cached in sorted(kv_cache.layers.items())
            if layer >= settings.sparse_attention_dense_layers and cached.group in full
        )
        max_rows = scheduler.max_num_seqs + scheduler.max_num_batched_tokens
        group = self._placement.group
        return load_kv_selector(SelectorInputs(settings, self._kernels, kv_cache, layers, max_rows, group))

    def _forward_pass(
        self, kv_cache: KVCache, selector: KVSelector | None = None, states: StateCache | None = None
    ) -> ForwardPass:
        scheduler = self._engine.scheduler
        start, is_invariant = self._spec.attention.value_start, self._engine.device.batch_invariant
        dtypes = self._placement.dtype, self._memory.shape.dtype
        shapes = (
            AttentionShape(group.query_heads, *group.heads, *dtypes, group.window, start)
            for group in self._memory.groups
        )
        groups = (
            AttentionGroup(shape, tables, is_invariant)
            for shape, tables in zip(shapes, self._slots.tables_of_groups(), strict=True)
        )
        return ForwardPass(
            self.model,
            kernels=self._kernels,
            kv_cache=kv_cache,
            slots=self._slots,
            position_tables=self._position_tables,
            prepare_attention=self._prepare_attention,
            groups=tuple(groups),
            limits=Limits(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, self._max_model_len),
            device=self._placement.device,
            incoming=self._link.incoming,
            selector=selector,
            state_cache=states,
        )

    def _ready(self) -> ForwardPass:
        if self._forward is None:
            raise ProtocolError("a step came before the KV cache was allocated")
        return self._forward

    def _free_device_bytes(self) -> int:
        """The rest of `gpu_memory_utilization` after memory in use, the peak of a step, swaps and sampling graphs."""
        from pyllm.workers.devices.torch_device import free_bytes

        utilization = self._engine.cache.gpu_memory_utilization
        room = free_bytes(self._placement.device, utilization, self.run_largest_step)
        room -= self._memory.staging_bytes()
        if self._may_capture:
            room -= self._planned_graph_bytes()
        return room

    def _planned_graph_bytes(self) -> int:
        """The memory reserved for graphs of sampling."""
        return self._sampler.planned_graph_bytes() if self._stage.is_last else 0


class RunningStep:
    """A step that has begun; its tokens are on their way to the host."""

    def __init__(self, draw: Draw, sampler: StepSampler, transfers: RankTransfers | None, metadata: bytes) -> None:
        self._draw = draw
        self._sampler = sampler
        self._transfers = transfers
        self._metadata = metadata
        self._sampled: Sampled | None = None

    def is_done(self) -> bool:
        """Whether `answer` would not wait."""
        return self._draw.is_done()

    def answer(self) -> Sampled:
        """Wait for the tokens; return them with the transfers that the KV connector has ended."""
        if self._sampled is None:
            sampled = self._sampler.finish(self._draw)
            if self._transfers is not None:
                self._transfers.end(self._metadata)
                if self._sampler.draws and (results := self._transfers.results()) is not None:
                    sampled = msgspec.structs.replace(sampled, transfers=results)
            self._sampled = sampled
        return self._sampled
