"""The host's share of a step on a GPU, without one: Triton compiles, and a launch does nothing.

It needs its own process (`python -m benchmarks.engine.captured_steps`), as it replaces Triton's driver. The calls of
CUDA and cuBLAS are left out: a launch, the copy of the plan, and one launch of the graph. Times are this thread's.
`with_products` adds the products of matrices, which torch computes here, and on a GPU only launches.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import triton
from pyllm_kernels import PackedLinear, select
from pyllm_kernels.ops.packed_linear import packed_linear
from torch import Tensor

from benchmarks.gpu.offline_driver import OfflineDriver
from benchmarks.record import Record, percentiles
from pyllm.workers.cuda_graphs import CaptureBudget
from pyllm.workers.forward_pass import ForwardPass, Limits
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.sampling.token_sampler import TokenSampler
from pyllm.workers.sampling_graphs import SamplingGraphs
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.slots import Slots
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.compile_steps import CPU, calls_of_a_layer, make_forward
from tests.workers.sampling.triton_sampler import sample_by_triton, sample_by_triton_on_device

LAYERS, ROWS, TOKENS = 32, 64, 512
LIMITS = Limits(max_num_seqs=ROWS, max_num_batched_tokens=TOKENS, max_model_len=TOKENS)
REPETITIONS = 200
VOCABULARY = 290


class NoReplay:
    """A graph whose replay takes no time."""

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        return compute(), lambda: None

    def free_bytes(self) -> int:
        return 1 << 40


def run() -> Iterator[Record]:
    command = [sys.executable, "-m", "benchmarks.engine.captured_steps"]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    for line in process.stdout.splitlines():
        yield json.loads(line)


@torch.inference_mode()
def figures(folder: str) -> Iterator[Record]:
    """A step with a prompt's chunk and one of decodes alone, captured and eager: the pass, then head and sampling."""
    sizes = {"heads": 2, "kv_heads": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": VOCABULARY}
    model = write_tiny_model(Path(folder) / "model", layers=LAYERS, **sizes)
    kernels = select("triton", "cuda")
    computing, _, _ = make_forward(model, kernels, "float32", LIMITS)
    forward, _, slots = make_forward(model, kernels.replaced(packed_linear, no_product), "float32", LIMITS)
    planner = Planner(num_blocks=ROWS * TOKENS // 16)
    for slot in range(ROWS):
        planner.start(slot)
    prompt = Row(0, [1] * (TOKENS - ROWS + 1))
    steps = {
        "mixed": planner.step(prompt, *(Row(slot, [1]) for slot in range(1, ROWS))),
        "decode": planner.step(*(Row(slot, [-1]) for slot in range(ROWS))),
    }
    batches = {kind: PlanBuffer(CPU).load(step.counts, frame) for kind, (step, frame) in steps.items()}
    eager = {kind: seconds(forward, batch) for kind, batch in batches.items()}
    calls = {kind: calls_of_a_layer(forward, batch) for kind, batch in batches.items()}
    sampling_slots = SamplingSlots(ROWS, VOCABULARY, None)
    sampler = TokenSampler(sampling_slots, CPU)
    graphs = SamplingGraphs(
        forward.head,
        sample_by_triton_on_device,
        slots,
        sampler,
        max_num_seqs=ROWS,
        hidden_size=32,
        dtype="float32",
        group=RankGroup(),
    )
    budget = CaptureBudget(NoReplay(), time.perf_counter, RankGroup(), CPU)
    graphs.capture(NoReplay(), budget)
    forward.capture_steps(NoReplay(), budget)
    for kind, batch in batches.items():
        case: dict[str, int | str] = {"rows": batch.num_rows, "tokens": batch.num_tokens}
        yield percentiles(f"captured_steps.{kind}", seconds(forward, batch), **case)
        record = percentiles(f"captured_steps.{kind}_eager", eager[kind], **case, calls_of_a_layer=calls[kind])
        record["with_products"] = round(statistics.median(seconds(computing, batch)) * 1e6, 1)
        yield record
        hidden = forward.hidden(batch)
        yield percentiles(f"captured_steps.{kind}_sampling", timed(partial(graphs.draw, 0, batch, hidden)), **case)
        by_ops = timed(partial(sample_by_ops, forward, slots, sampler, batch, hidden))
        yield percentiles(f"captured_steps.{kind}_sampling_eager", by_ops, **case)


def no_product(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    """Memory for a product: the host's only work for a product on a GPU, beside a call of cuBLAS."""
    return x.new_empty((x.shape[0], packed.data.shape[0])) if out is None else out


def sample_by_ops(forward: ForwardPass, slots: Slots, sampler: TokenSampler, batch: Batch, hidden: Tensor) -> None:
    """Compute head, sampling and the slots' last tokens, like a runner on a GPU without a graph."""
    logits = forward.logits(hidden, batch.device.logits_rows)
    parameters = sampler.plain_rows(batch)
    assert logits is not None
    assert parameters is not None
    tokens = sample_by_triton(logits, parameters, batch.device.uniforms, CPU)
    sampler.drawn(0, batch, tokens)
    slots.remember(batch, tokens.clip(min=0))


def seconds(forward: ForwardPass, batch: Batch) -> list[float]:
    """Seconds of each forward pass, after some that compile."""
    return timed(lambda: forward.hidden(batch))


def timed(compute: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(REPETITIONS + 10):
        started = time.thread_time()  # The pass only computes, and other processes must not count.
        compute()
        times.append(time.thread_time() - started)
    return times[10:]


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # Memory that no kernel fills may hold such numbers, and products of them are slow.
    triton.runtime.driver.set_active(OfflineDriver(90))
    with tempfile.TemporaryDirectory() as folder:
        for record in figures(folder):
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
