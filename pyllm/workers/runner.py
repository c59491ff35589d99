"""One rank's share of the model, run step by step: load, size the KV cache, execute plans, answer calls.

Knows no process and no socket (`process.py`), and of scheduling only what a plan says.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import (
    AttentionMetadata,
    AttentionShape,
    BackendError,
    CardError,
    Kernels,
    batch_invariant,
    check_card,
    instruction_set,
    select,
)
from torch import Tensor

from pyllm.config import EngineConfig, WorkerConfig
from pyllm.errors import ConfigError, ProtocolError
from pyllm.messages import Sampled, Step
from pyllm.workers.attention_backends import load_attention_backend
from pyllm.workers.batch import Batch, PlanBuffer
from pyllm.workers.context import AttentionHook, ForwardContext
from pyllm.workers.decode_graphs import Capture, CudaCapture, DecodeGraphs, DecodeInputs, capture_sizes, is_decode
from pyllm.workers.kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank
from pyllm.workers.layers.rope import rope_table
from pyllm.workers.loaders import TensorTable, weight_reader
from pyllm.workers.models.registry import build_model
from pyllm.workers.parallel import RankGroup
from pyllm.workers.placement import Placement
from pyllm.workers.sampler import SamplingRows, sample
from pyllm.workers.slots import Slots
from pyllm.workers.staging import HostCopy, to_device
from pyllm.workers.step_graph import StepGraph

DEFAULT_CPU_KV_CACHE_BYTES = 512 << 20

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


class ModelRunner:
    """Call `load`, then `call("allocate", (num_blocks, num_host_blocks))`, then `run` for each step."""

    def __init__(self, config: WorkerConfig, group: RankGroup, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        engine = config.engine
        self._engine = engine
        self._checkpoint = config.checkpoint
        self._architecture = config.checkpoint.architecture
        device = worker_device(config)
        kernels = _kernels(engine, device)
        attention = load_attention_backend(engine.device.attention_backend, device, engine.device.kernel_backend)
        self._kernels = replace(kernels, plan_attention=attention.plan, paged_attention=attention.attend)
        # A CPU's graph holds Rust's ops and no others.
        in_graphs = attention.in_graphs if device.type == "cuda" else attention.attend is kernels.paged_attention
        self._may_capture = in_graphs and not engine.device.enforce_eager
        self._graphs: DecodeGraphs | None = None
        self._step_graph: StepGraph | None = None
        self._hooks: tuple[AttentionHook, ...] = ()
        self._placement = Placement(
            group, _DTYPES[engine.model.dtype], device, self._kernels, engine.model.quantization
        )
        assert engine.model.max_model_len is not None, "the configuration was not resolved"
        self._max_model_len = engine.model.max_model_len
        block_size = engine.cache.block_size
        kv_cache_dtype = _DTYPES[engine.cache.kv_cache_dtype]
        self._cache_shape = KVCacheShape.of(self._architecture, block_size, group.size, kv_cache_dtype)
        self._attention_shape = AttentionShape(
            heads=self._architecture.num_attention_heads // group.size,
            kv_heads=self._cache_shape.num_kv_heads,
            head_dim=self._architecture.head_dim,
            dtype=self._placement.dtype,
        )
        self._block_bytes = self._cache_shape.block_bytes
        self._slots = Slots(engine.scheduler.max_num_seqs, -(-self._max_model_len // block_size), device)
        self._plans = PlanBuffer(device)
        self._kv_cache: KVCache | None = None
        self._host_pool: HostPool | None = None
        self._swap_seconds = 0.0
        self._methods: dict[str, Callable[..., Any]] = {
            "num_blocks": self.num_blocks,
            "num_host_blocks": self.num_host_blocks,
            "allocate": self.allocate,
            "swap_seconds": self.swap_seconds,
            "statistics": self.statistics,
            "instruction_set": self.instruction_set,
        }

    @torch.inference_mode()
    def load(self) -> None:
        """Read this rank's share of the weights, and see whether there is room for the swap space beside them.

        Raises:
            ConfigError: the files do not hold what the architecture needs, or the host has too little memory.
        """
        table = TensorTable(self._checkpoint)
        self.model = build_model(self._architecture, self._placement)
        self.model.load(weight_reader(self._checkpoint, table))
        table.check_all_read()
        self._cos_sin = rope_table(
            self._architecture.head_dim, self._architecture.rope_theta, self._max_model_len, self._placement.device
        )
        self._num_host_blocks = host_blocks_of_rank(
            self._engine.cache.kv_offloading_size, self._placement.group.size, self._block_bytes
        )

    def run(self, step: Step, frame: bytes | memoryview) -> Sampled:
        """Execute the plan in `frame`; every rank gives the same answer, of which the core wants rank 0's.

        Raises:
            ProtocolError: the plan is malformed, or asks for what this worker cannot do.
        """
        return self.begin(step, frame).answer()

    def begin(self, step: Step, frame: bytes | memoryview) -> "RunningStep":
        """The same, but on a GPU nothing is waited for: the next step may begin before this one is answered."""
        batch = self._plans.load(step.counts, frame)
        starts = batch.host.sampled_starts.tobytes()
        return RunningStep(step.step, starts, HostCopy(self.execute(batch)))

    @torch.inference_mode()
    def execute(self, batch: Batch) -> Tensor:
        """One step; gives the sampled tokens, int32 [sampled positions], on the device.

        The order is part of the plan's meaning: slot copies, slot initialisations, block-table changes, swaps to the
        host, swaps from it, block copies, then the forward pass.
        """
        if self._kv_cache is None:
            raise ProtocolError("a step came before the KV cache was allocated")
        self._slots.apply(batch)
        if len(batch.host.swaps):
            if self._host_pool is None:
                raise ProtocolError("the plan swaps blocks, but there is no host pool: kv_offloading_size is 0")
            self._host_pool.swap(batch.host.swaps.reshape(-1, 3))
        if len(batch.host.block_copies):
            copies = batch.device.block_copies.view(-1, 2)
            for keys, values in self._kv_cache.layers:
                self._kernels.copy_blocks(keys, values, copies)
        if not batch.num_tokens:
            return torch.empty(0, dtype=torch.int32)
        hidden = self.forward(batch, self._kv_cache)
        rows = batch.host.logits_rows
        if not len(rows):
            return torch.empty(0, dtype=torch.int32)
        # Samples of one request are drawn from the same position, whose logits are computed once.
        forks = bool((rows[1:] == rows[:-1]).any())
        positions, rows = np.unique(rows, return_inverse=True) if forks else (rows, rows)
        device = self._placement.device
        wanted = to_device(torch.from_numpy(positions), device) if forks else batch.device.logits_rows
        logits = self.logits(hidden, wanted)
        if logits is None:
            sampled = torch.empty(len(rows), dtype=torch.int32, device=device)
        else:
            drawn_from = to_device(torch.from_numpy(rows), device) if forks else None
            sampled = sample(logits, self._slots.sampling_rows(batch), batch.device.uniforms, drawn_from)
        self._placement.group.broadcast(sampled)
        self._slots.remember(batch, sampled)
        return sampled

    def add_attention_hook(self, hook: AttentionHook) -> None:
        """Have every layer of every step from now on pass by `hook`."""
        self._hooks += (hook,)

    def forward(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """The pass over the plan's tokens, [tokens, hidden_size]. Hooks are Python: no graph passes by them."""
        graphs = self._graphs
        if graphs is not None and not self._hooks and batch.num_rows <= graphs.max_rows and is_decode(batch.host):
            return graphs.run(batch.host)
        tokens = self._slots.known_tokens(batch)
        if self._step_graph is not None and not self._hooks and self._step_graph.has_room(batch):
            return self._step_graph.hidden(tokens, batch)
        return self.model(tokens, self._context(batch, kv_cache))

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor | None:
        """Of some rows of the hidden states, [rows, vocab_size]; None on all ranks but the first."""
        if self._step_graph is not None and len(rows) <= self._engine.scheduler.max_num_seqs:
            return self._step_graph.logits(hidden, rows)
        return self.model.logits(hidden[rows])

    def call(self, method: str, args: tuple[Any, ...] = ()) -> Any:
        """Answer a `Control` by the method that it names, of those that `__init__` lists.

        Raises:
            ProtocolError: there is no such method.
        """
        if method not in self._methods:
            raise ProtocolError(f"a worker has no method {method!r}, only {', '.join(sorted(self._methods))}")
        return self._methods[method](*args)

    @torch.inference_mode()
    def num_blocks(self) -> int:
        """How many KV blocks this rank has room for: as configured, else in what a GPU has left beside a full step."""
        room = self._engine.cache.kv_cache_memory_bytes
        if room is None:
            room = self._free_device_bytes() if self._placement.device.type == "cuda" else DEFAULT_CPU_KV_CACHE_BYTES
        return max(0, room) // self._block_bytes

    def num_host_blocks(self) -> int:
        """How many KV blocks this rank may keep in host memory: its share of `kv_offloading_size`."""
        return self._num_host_blocks

    @torch.inference_mode()
    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the KV cache and the host pool, the same number of blocks on every rank, and time a few swaps."""
        if self._kv_cache is not None:
            raise ProtocolError(f"the KV cache of {self._kv_cache.num_blocks} blocks is allocated already")
        self._kv_cache = KVCache(self._cache_shape, num_blocks, self._placement.device)
        if self._may_capture and self._placement.device.type == "cuda":
            self.capture(CudaCapture())
        elif self._may_capture and self._kernels.backend == "cpu":
            self._step_graph = self._capture_step(self._kv_cache)
        if num_host_blocks:
            self._host_pool = HostPool(self._kv_cache, num_host_blocks, self._kernels, self._clock)
            self._swap_seconds = self._host_pool.time_swaps()

    @torch.inference_mode()
    def capture(self, capture: Capture) -> None:
        """Record the forward pass of decode batches of some sizes, for steps to replay; the KV cache is there."""
        sizes = capture_sizes(self._engine.scheduler.max_num_seqs)
        self._graphs = DecodeGraphs(self._decode, sizes, self._placement.device, capture)

    def swap_seconds(self) -> float:
        """Seconds to move one block to the host and back, as measured when the pool was made; 0 without a pool."""
        return self._swap_seconds

    def statistics(self) -> dict[str, int]:
        """Bytes that this rank holds: of its linear layers, its embedding's rows, the KV cache and the host pool."""
        num_blocks = 0 if self._kv_cache is None else self._kv_cache.num_blocks
        num_host_blocks = 0 if self._host_pool is None else self._host_pool.num_blocks
        return {
            "linear_bytes": sum(packed.data.nbytes for packed in self.model.matrices()),
            "embedding_bytes": self.model.embedding.packed.data.nbytes,
            "kv_cache_bytes": num_blocks * self._block_bytes,
            "host_kv_cache_bytes": num_host_blocks * self._block_bytes,
        }

    def instruction_set(self) -> str:
        """What the numbers depend on besides weights and dtype: the kind of arithmetic this machine does."""
        if self._placement.device.type == "cuda":
            return torch.cuda.get_device_name(self._placement.device)
        return f"{torch.backends.cpu.get_cpu_capability()} {instruction_set()}"

    @torch.inference_mode()
    def run_largest_step(self) -> None:
        """Compute the step that needs the most memory: every token of the budget, and a sample for every slot.

        It reads one block of a cache of its own over and over and writes nothing.
        """
        device = self._placement.device
        limits = self._engine.scheduler
        num_tokens = min(limits.max_num_batched_tokens, limits.max_num_seqs * self._max_model_len)
        starts = [*range(0, num_tokens, self._max_model_len), num_tokens]
        lengths = np.diff(starts)

        def ints(values: npt.ArrayLike) -> Tensor:
            return torch.from_numpy(np.asarray(values, np.int32)).to(device)

        attention = AttentionMetadata(
            block_tables=torch.zeros_like(self._slots.block_tables),
            slots=ints(np.arange(len(lengths))),
            query_starts=ints(starts),
            sequence_lengths=ints(lengths),
            max_query_length=int(lengths.max()),
            max_sequence_length=int(lengths.max()),
            num_tokens=num_tokens,
            batch_invariant=self._engine.device.batch_invariant,
        )
        context = ForwardContext(
            kernels=self._kernels,
            kv_cache=KVCache(self._cache_shape, 1, self._placement.device),
            attention=self._kernels.plan_attention(attention, self._attention_shape),
            positions=ints(np.concatenate([np.arange(length) for length in lengths])),
            slot_mapping=ints(np.full(num_tokens, -1)),
            cos_sin=self._cos_sin,
        )
        hidden = self.model(ints(np.zeros(num_tokens)), context)
        logits = self.model.logits(hidden[: limits.max_num_seqs])
        if logits is not None:
            rows = len(logits)
            some_filter = SamplingRows(
                torch.ones(rows), torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 0.9), torch.zeros(rows)
            )
            sample(logits, some_filter, torch.full((rows,), 0.5, device=device))

    def _capture_step(self, kv_cache: KVCache) -> StepGraph | None:
        """The layers as one call, where all that they do is Rust's: not float16, and no exchange between ranks."""
        if self._placement.group.size > 1 or torch.float16 in {self._placement.dtype, self._cache_shape.dtype}:
            return None
        limits = self._engine.scheduler

        def context(attention: AttentionMetadata, positions: Tensor, slot_mapping: Tensor) -> ForwardContext:
            return ForwardContext(self._kernels, kv_cache, attention, positions, slot_mapping, self._cos_sin)

        return StepGraph(
            self.model, context, self._slots.block_tables, limits.max_num_batched_tokens, limits.max_num_seqs
        )

    def _free_device_bytes(self) -> int:
        """The share of a GPU that `gpu_memory_utilization` gives us, less all that is in use and a full step's peak."""
        device = self._placement.device
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        self.run_largest_step()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(total * self._engine.cache.gpu_memory_utilization) - (total - free) - peak

    def _decode(self, inputs: DecodeInputs) -> Tensor:
        """What a graph holds: the pass over one token of each row, whatever the lengths."""
        assert self._kv_cache is not None
        num_rows = len(inputs.slots)
        attention = AttentionMetadata(
            block_tables=self._slots.block_tables,
            slots=inputs.slots,
            query_starts=inputs.query_starts,
            sequence_lengths=inputs.sequence_lengths,
            max_query_length=1,
            max_sequence_length=self._max_model_len,
            num_tokens=num_rows,
            batch_invariant=self._engine.device.batch_invariant,
        )
        context = ForwardContext(
            kernels=self._kernels,
            kv_cache=self._kv_cache,
            attention=self._kernels.plan_attention(attention, self._attention_shape),
            positions=inputs.positions,
            slot_mapping=inputs.slot_mapping,
            cos_sin=self._cos_sin,
        )
        tokens = torch.where(inputs.tokens < 0, self._slots.last_tokens[inputs.slots], inputs.tokens)
        return self.model(tokens, context)

    def _context(self, batch: Batch, kv_cache: KVCache) -> ForwardContext:
        device = batch.device
        attention = AttentionMetadata(
            block_tables=self._slots.block_tables,
            slots=device.slots,
            query_starts=device.query_starts,
            sequence_lengths=device.sequence_lengths,
            max_query_length=batch.max_query_length,
            max_sequence_length=batch.max_sequence_length,
            num_tokens=batch.num_tokens,
            batch_invariant=self._engine.device.batch_invariant,
        )
        return ForwardContext(
            kernels=self._kernels,
            kv_cache=kv_cache,
            attention=self._kernels.plan_attention(attention, self._attention_shape),
            positions=device.positions,
            slot_mapping=device.slot_mapping,
            cos_sin=self._cos_sin,
            hooks=self._hooks,
        )


class RunningStep:
    """A step that was begun, and whose tokens are on their way to the host."""

    def __init__(self, step: int, starts: bytes, tokens: HostCopy) -> None:
        self._step = step
        self._starts = starts
        self._tokens = tokens

    def is_done(self) -> bool:
        """Whether `answer` would not wait."""
        return self._tokens.is_done()

    def answer(self) -> Sampled:
        """Wait for the tokens."""
        return Sampled(self._step, self._starts, self._tokens.wait().numpy().tobytes())


def worker_device(config: WorkerConfig) -> torch.device:
    """The device of a rank: GPU number `rank`, or the CPU."""
    kind = config.engine.device.device
    return torch.device("cuda", config.rank) if kind == "cuda" else torch.device(kind)


def _kernels(engine: EngineConfig, device: torch.device) -> Kernels:
    """The ops as configured, for a card that can run them."""
    backend = engine.device.kernel_backend
    try:
        kernels = select(backend, device)
        if device.type == "cuda":
            dtypes = _DTYPES[engine.model.dtype], _DTYPES[engine.cache.kv_cache_dtype]
            check_card(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), *dtypes)
    except BackendError as error:
        raise ConfigError(f"kernel_backend {backend}: {error}") from error
    except CardError as error:
        raise ConfigError(str(error)) from error
    return batch_invariant(kernels) if engine.device.batch_invariant else kernels
