"""One pass of sampling on the CPU, from the logits of a whole batch to its tokens, beside torch.

Torch gets its inputs in the best form, also tensors of penalties as large as the logits, and samples in the usual way:
sort, cut, softmax, multinomial.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from os import sched_getaffinity

import numpy as np
import pyllm_kernels
import torch
from pyllm_kernels import LogitsEdits, LogitsStates
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.tensors import Array
from torch import Tensor

from benchmarks.record import Record
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.sampling.sampler import SamplingRows, sample

ROWS, VOCABULARY = 256, 49_152
TOP_K, TOP_P, TEMPERATURE, NUM_LOGPROBS = 50, 0.9, 0.8, 5
PROMPT, OUTPUT = 512, 256  # tokens that are known of each row
REPETITIONS = 12


def run() -> Iterator[Record]:
    threads = len(sched_getaffinity(0))
    before = pyllm_kernels.num_threads(), torch.get_num_threads()
    pyllm_kernels.set_num_threads(threads)
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield from figures()
    finally:
        pyllm_kernels.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def figures() -> Iterator[Record]:
    """Each figure of pyllm beside torch's, measured in turn."""
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    ours = logits.numpy()
    uniforms = torch.rand(ROWS).numpy()
    plain, cut = parameters(0, 1.0), parameters(TOP_K, TOP_P)
    greedy = SamplingRows(plain.temperature * 0, plain.top_k, plain.top_p, plain.min_p)
    states, penalties = known_tokens()
    masks = torch.randint(-(2**31), 2**31 - 1, (ROWS, VOCABULARY // 32), dtype=torch.int32)
    rows = np.arange(ROWS, dtype=np.int32)
    chosen = torch.randint(VOCABULARY, (ROWS,), dtype=torch.int32)

    device, edited = HostDevice(), np.empty_like(ours)

    def draw(from_logits: Array, parameters: SamplingRows) -> Array:
        tokens: Array = sample(from_logits, parameters, uniforms, device)
        return tokens

    def edited_sample() -> Array:
        return draw(edit_logits(ours, rows, states(), rows, masks.numpy(), edited), cut)

    allowed = (masks.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32) & 1).flatten(1).bool()
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "greedy": (partial(draw, ours, greedy), lambda: logits.argmax(-1)),
        "temperature": (partial(draw, ours, plain), lambda: torch_sample(logits, cut=False)),
        "top_k_top_p": (partial(draw, ours, cut), lambda: torch_sample(logits, cut=True)),
        "edits": (states, lambda: None),
        "everything": (edited_sample, lambda: torch_sample(penalties(logits, allowed), cut=True)),
        "logprobs": (
            partial(logprobs, ours, rows, chosen.numpy(), NUM_LOGPROBS),
            lambda: torch_logprobs(logits, chosen),
        ),
    }
    for name, (call, theirs) in cases.items():
        record: Record = {"name": f"sampling.{name}", "value": milliseconds(call), "unit": "ms", "rows": ROWS}
        if name != "edits":
            record["torch"] = milliseconds(theirs)
        yield record


def parameters(top_k: int, top_p: float) -> SamplingRows:
    ones = np.ones(ROWS, np.float32)
    temperature, cut = np.float32(TEMPERATURE), np.float32(top_p)
    return SamplingRows(ones * temperature, np.full(ROWS, top_k, np.int32), ones * cut, ones * 0)


def known_tokens() -> tuple[Callable[[], LogitsEdits], Callable[[Tensor, Tensor], Tensor]]:
    """Two functions: one makes the edits of all penalties, the other does the same with torch."""
    presence, frequency, repetition = 0.5, 0.25, 1.1
    known = np.random.default_rng(0).zipf(1.2, (ROWS, PROMPT + OUTPUT)).astype(np.int64) % VOCABULARY
    states = LogitsStates(ROWS, VOCABULARY)
    for slot, tokens in enumerate(known.astype(np.int32)):
        states.initialise(
            slot,
            tokens,
            PROMPT,
            presence_penalty=presence,
            frequency_penalty=frequency,
            repetition_penalty=repetition,
        )
    slots, no_drafts = np.arange(ROWS, dtype=np.int32), np.zeros(ROWS + 1, np.int32)
    counts = torch.zeros(ROWS, VOCABULARY)
    output = torch.from_numpy(known[:, PROMPT:])
    counts.scatter_add_(1, output, torch.ones(output.shape))
    stands = torch.zeros(ROWS, VOCABULARY, dtype=torch.bool).scatter_(1, torch.from_numpy(known), True)

    def edits() -> LogitsEdits:
        return LogitsEdits.from_columns(states.edits(slots, no_drafts, no_drafts[:0]))

    def penalised(logits: Tensor, allowed: Tensor) -> Tensor:
        logits = logits.masked_fill(~allowed, -torch.inf)
        factors = torch.where(stands, repetition, 1.0)
        logits = torch.where(logits > 0, logits / factors, logits * factors)
        return logits.sub_(counts, alpha=frequency).sub_((counts > 0).float(), alpha=presence)

    return edits, penalised


def torch_sample(logits: Tensor, *, cut: bool) -> Tensor:
    logits = logits / TEMPERATURE
    if not cut:
        return torch.multinomial(logits.softmax(-1), 1)
    best, ids = logits.topk(TOP_K)
    probabilities = best.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    return ids.gather(1, torch.multinomial(probabilities.masked_fill(before >= TOP_P, 0), 1))


def torch_logprobs(logits: Tensor, chosen: Tensor) -> tuple[Tensor, ...]:
    logits = logits.log_softmax(-1)
    told = logits.gather(1, chosen.long().unsqueeze(-1))
    return told, *logits.topk(NUM_LOGPROBS), (logits >= told).sum(-1)


def milliseconds(call: Callable[[], object]) -> float:
    """The least milliseconds of several calls."""
    call()
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return round(min(times) * 1e3, 2)
