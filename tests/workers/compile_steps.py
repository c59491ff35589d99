"""Launches every kernel as a worker does at its start, then steps of many kinds, and prints what either compiled.

A process of its own (`python -m tests.workers.compile_steps MODEL`), because it must not see TRITON_INTERPRET. A kernel
that is launched computes nothing (`OfflineDriver`), so what comes of the steps means nothing.
"""

import json
import sys
from collections import Counter
from types import FrameType

import numpy as np
import torch
import triton
from pyllm_kernels import AttentionShape, Kernels, select
from pyllm_kernels.ops.blocks import copy_blocks

from benchmarks.gpu.offline_driver import OfflineDriver
from benchmarks.gpu.offline_launches import MODULES
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.families.kv_layout import kv_groups
from pyllm.supervision.line_writer import end_process
from pyllm.workers.attention_backends import attention_of
from pyllm.workers.decoder import Decoder, DecoderLayer
from pyllm.workers.devices.device import Device
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.forward_pass import ForwardPass, Limits
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.kv.swap_stream import SwapStream
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.sampling.sampler import SamplingRows
from pyllm.workers.step.attention_batch import AttentionGroup
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots
from pyllm.workers.warm_up import launch_every_kernel
from tests.plans import Planner, Row
from tests.workers.kv.fake_streams import FakeStreams
from tests.workers.sampling.triton_sampler import sample_by_triton

CPU = TorchDevice(torch.device("cpu"))
NUM_BLOCKS = 64
LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=512)


def make_forward(
    folder: str,
    kernels: Kernels,
    dtype: str,
    limits: Limits = LIMITS,
    batch_invariant: bool = False,
    *,
    group: RankGroup | None = None,
) -> tuple[ForwardPass, KVCache, Slots]:
    """The model of a folder, or a rank's share of it, over a cache of its own."""
    group = RankGroup() if group is None else group
    device: Device = HostDevice() if kernels.backend == "cpu" else CPU
    checkpoint = read_checkpoint(folder)
    spec = checkpoint.spec
    model = Decoder(spec, WeightPlacement(group, dtype, device, kernels))
    model.load(weight_reader(checkpoint, TensorTable(checkpoint)))
    groups = kv_groups(spec, limits.max_model_len, hybrid=True, ranks=group.size)
    num_blocks = max(NUM_BLOCKS, limits.max_num_seqs * limits.max_model_len // 16 * len(groups))
    cache_shape = KVCacheShape.of(spec, 16, group.size, dtype, groups)
    kv_cache = KVCache(cache_shape, num_blocks, device, groups)
    slots = Slots(limits.max_num_seqs, limits.max_model_len // 16, device, len(groups))
    layers = range(len(spec.layers))
    states = StateCache(spec, group.size, layers, limits.max_num_seqs, device) if spec.has_states else None
    start = spec.attention.value_start
    shapes = [AttentionShape(of.query_heads, *of.heads, dtype, value_start=start) for of in groups]
    forward = ForwardPass(
        model,
        kernels=kernels,
        kv_cache=kv_cache,
        slots=slots,
        position_tables=PositionTables.of(spec, limits.max_model_len, device),
        prepare_attention=attention_of(kernels).prepare,
        groups=tuple(
            AttentionGroup(shape, tables, batch_invariant)
            for shape, tables in zip(shapes, slots.tables_of_groups(), strict=True)
        ),
        limits=limits,
        device=device,
        state_cache=states,
    )
    return forward, kv_cache, slots


def compiled() -> Counter[str]:
    """How many versions of each kernel there are."""
    functions = [function for module in MODULES for function in vars(module).values()]
    jitted = [function for function in functions if isinstance(function, triton.JITFunction)]
    return Counter({function.fn.__name__: len(function.device_caches[0][0]) for function in jitted})


def calls_of_a_layer(forward: ForwardPass, batch: Batch) -> int:
    """How many functions of Python a layer calls, itself included; of a step whose kernels are compiled."""
    layer, layers, depth, calls = DecoderLayer.__call__.__code__, 0, 0, 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal layers, depth, calls
        if frame.f_code is layer:
            layers += event == "call"
            depth += {"call": 1, "return": -1}.get(event, 0)
        calls += event == "call" and depth > 0

    sys.setprofile(count)
    try:
        forward.hidden(batch)
    finally:
        sys.setprofile(None)
    return calls // layers


@torch.inference_mode()
def main(folder: str) -> None:
    triton.runtime.driver.set_active(OfflineDriver(90))
    kernels = select("triton", "cuda")
    forward, kv_cache, slots = make_forward(folder, kernels, "float16")
    launch_every_kernel(forward, kernels, kv_cache, sample_by_triton)
    host_blocks = torch.empty((4, *kv_cache.memory.movedim(2, 0).shape[1:]), dtype=kv_cache.memory.dtype)
    stream = SwapStream(kv_cache.memory, host_blocks, kernels, 2, FakeStreams())
    swaps = np.array([(way, block, block) for way in (0, 1) for block in range(3)], np.int32)
    stream.swap(swaps[::3], torch.from_numpy(swaps[::3]))
    at_start = compiled()

    planner, plans = Planner(NUM_BLOCKS), PlanBuffer(CPU)
    for slot in range(5):
        planner.start(slot)
    lengths = (1, 5, 33, 300, 16)
    for rows in (
        [Row(0, [7] * lengths[0])],
        [Row(1, [7] * lengths[1])],
        [Row(0, [7]), Row(2, [7] * lengths[2]), Row(1, [7])],
        [Row(slot, [7]) for slot in range(3)],  # Short rows alone.
        [Row(3, [7] * lengths[3]), Row(4, [7] * lengths[4])],
        [Row(3, [7])],
        [Row(slot, [7]) for slot in range(5)],
    ):
        step, frame = planner.step(*rows)
        batch = plans.load(step.counts, frame)
        slots.apply(batch)
        logits = forward.logits(forward.hidden(batch), batch.device.logits_rows)
        assert logits is not None
        for some in (logits, logits.float()):
            ones = np.ones(len(rows), np.float32)
            parameters = SamplingRows(ones, ones.astype(np.int32), ones, ones)
            sample_by_triton(some, parameters, batch.device.uniforms, CPU, batch.host.logits_rows * 0)
        copies = torch.zeros((len(rows), 2), dtype=torch.int32)
        for keys, values in kv_cache.memory:
            kernels[copy_blocks](keys, values, copies)
        stream.swap(swaps, torch.from_numpy(swaps))
    step, frame = planner.step(Row(0, [7]), Row(2, [7] * lengths[2]), Row(1, [7]))
    batch = plans.load(step.counts, frame)
    forward.hidden(batch)  # The first launch of a kind is Triton's.
    calls = calls_of_a_layer(forward, batch)
    print(json.dumps({"at_start": at_start, "in_steps": compiled() - at_start, "calls_of_a_layer": calls}))


if __name__ == "__main__":
    main(sys.argv[1])
    end_process(0)  # It once ended with SIGSEGV, when all was printed.
