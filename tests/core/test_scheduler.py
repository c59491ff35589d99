"""What the scheduler decides, as stories: each step's plan is read the way a worker reads it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from pyllm._rust import NeverFitsError, Plan, Scheduler, SchedulerError
from pyllm.wire.messages import FinishCode
from pyllm.wire.plan_layout import PLAN_SECTIONS
from tests.plan_reader import read_plan


def make_scheduler(
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    enable_prefix_caching: bool = True,
    max_loras: int = 0,
) -> Scheduler:
    return Scheduler(
        block_size=4,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=128,
        vocab_size=1000,
        enable_prefix_caching=enable_prefix_caching,
        max_loras=max_loras,
    )


def pack(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def add(scheduler: Scheduler, request: int, prompt: Sequence[int], max_tokens: int, *, n: int = 1) -> None:
    scheduler.add(0, request, pack(prompt), seed=request, max_tokens=max_tokens, n=n)


@dataclass
class Step:
    """A plan with its sections as lists."""

    id: int
    sections: dict[str, list[int]]

    def __getitem__(self, section: str) -> list[int]:
        return self.sections[section]

    @property
    def row_lengths(self) -> list[int]:
        starts = self["query_starts"]
        return [end - start for start, end in pairwise(starts)]


def read(plan: Plan | None) -> Step:
    assert plan is not None
    sections = {name: values.tolist() for name, values in read_plan(plan).items()}
    return Step(plan.step, sections)


def plan_step(scheduler: Scheduler) -> Step:
    return read(scheduler.schedule(0.0))


def commit(scheduler: Scheduler, step: Step, tokens: Sequence[int]) -> None:
    scheduler.commit(step.id, pack(step["sampled_starts"]), pack(tokens))


def run_step(scheduler: Scheduler, token: int = 9) -> Step:
    """One step whose every sampled token is `token`."""
    step = plan_step(scheduler)
    commit(scheduler, step, [token] * len(step["logits_rows"]))
    return step


class Delta(NamedTuple):
    request: int
    sample: int
    offset: int
    tokens: list[int]
    finish: FinishCode
    cached_tokens: int


def take(scheduler: Scheduler) -> list[Delta]:
    columns = scheduler.take_deltas(0)
    if columns is None:
        return []
    requests, samples, offsets, starts, tokens, finishes, cached = (
        memoryview(column).cast(element).tolist() for column, element in zip(columns[:7], "QiiiiBi", strict=True)
    )
    return [
        Delta(
            requests[i], samples[i], offsets[i], tokens[starts[i] : starts[i + 1]], FinishCode(finishes[i]), cached[i]
        )
        for i in range(len(requests))
    ]


def test_a_request_is_prefilled_then_decoded_to_its_end():
    scheduler = make_scheduler()
    add(scheduler, 1, [10, 11, 12, 13, 14], max_tokens=2)
    first = plan_step(scheduler)
    assert first["tokens"] == [10, 11, 12, 13, 14]
    assert first["positions"] == [0, 1, 2, 3, 4]
    assert (first["slots"], first["sequence_lengths"], first["logits_rows"]) == ([0], [5], [4])
    assert first["slot_inits"] == [0]
    blocks = first["table_blocks"]
    assert (first["table_slots"], first["table_indices"]) == ([0, 0], [0, 1])
    assert first["slot_mapping"] == [blocks[0] * 4 + offset for offset in range(4)] + [blocks[1] * 4]
    commit(scheduler, first, [20])

    second = plan_step(scheduler)
    assert (second["tokens"], second["positions"], second["sequence_lengths"]) == ([20], [5], [6])
    assert second["slot_mapping"] == [blocks[1] * 4 + 1]
    assert second["table_blocks"] == second["slot_inits"] == []
    commit(scheduler, second, [21])

    assert take(scheduler) == [Delta(1, 0, 0, [20, 21], FinishCode.LENGTH, 0)]
    assert scheduler.schedule(0.0) is None
    stats = scheduler.stats()
    assert (stats["num_requests"], stats["num_used_blocks"], stats["num_computed_tokens"]) == (0, 0, 6)


def test_a_step_mixes_decodes_with_part_of_a_prefill():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    add(scheduler, 1, range(4), max_tokens=9)
    add(scheduler, 2, range(50, 53), max_tokens=9)
    run_step(scheduler)
    add(scheduler, 3, range(100, 110), max_tokens=9)
    mixed = run_step(scheduler)
    assert mixed.row_lengths == [1, 1, 6]
    assert mixed["sequence_lengths"] == [5, 4, 6]
    assert mixed["sampled_starts"] == [0, 1, 2, 2]  # the prefill has no token yet
    rest = run_step(scheduler)
    assert rest.row_lengths == [1, 1, 4]
    assert rest["positions"][2:] == [6, 7, 8, 9]
    assert rest["sampled_starts"] == [0, 1, 2, 3]


def test_a_plan_does_not_grow_with_context():
    scheduler = make_scheduler()
    add(scheduler, 1, range(3), max_tokens=60)
    add(scheduler, 2, range(70, 120), max_tokens=60)
    run_step(scheduler)
    plan = scheduler.schedule(0.0)
    step = read(plan)
    assert step["sequence_lengths"] == [4, 51]
    assert memoryview(plan).nbytes <= 64 * len(PLAN_SECTIONS)


@pytest.mark.parametrize(("enable_prefix_caching", "cached", "computed"), [(True, 12, 2), (False, 0, 14)])
def test_a_shared_prefix_is_computed_once(enable_prefix_caching: bool, cached: int, computed: int):
    scheduler = make_scheduler(enable_prefix_caching=enable_prefix_caching)
    prefix = list(range(12))
    add(scheduler, 1, [*prefix, 50, 51], max_tokens=1)
    run_step(scheduler)
    add(scheduler, 2, [*prefix, 60, 61], max_tokens=1)
    second = run_step(scheduler)
    assert len(second["tokens"]) == computed
    assert [delta.cached_tokens for delta in take(scheduler)] == [0, cached]
    stats = scheduler.stats()
    assert stats["prefix_hits"] == cached
    assert stats["prefix_queries"] == (28 if enable_prefix_caching else 0)


def test_the_last_token_is_computed_even_where_all_blocks_are_cached():
    scheduler = make_scheduler()
    for request in (1, 2):
        add(scheduler, request, range(8), max_tokens=1)
        step = run_step(scheduler)
    assert step["positions"] == [4, 5, 6, 7]


@pytest.mark.parametrize("keys", [{"tenant": "acme"}, {"cache_salt": "salt"}, {"adapter": "lora", "adapter_number": 1}])
def test_tenant_salt_and_adapter_keep_prefixes_apart(keys: dict[str, Any]):
    scheduler = make_scheduler(max_loras=1)
    prompt = pack(range(9))
    for request, extra in enumerate([{}, keys, keys]):
        scheduler.add(0, request, prompt, seed=0, max_tokens=1, **extra)
        run_step(scheduler)
    assert [delta.cached_tokens for delta in take(scheduler)] == [0, 0, 8]


def test_where_blocks_run_out_the_last_admitted_is_preempted_and_every_request_ends():
    scheduler = make_scheduler(num_blocks=6, enable_prefix_caching=False)
    for request in (1, 2, 3):
        add(scheduler, request, [request] * 6, max_tokens=8)
    outputs: dict[int, list[int]] = {1: [], 2: [], 3: []}
    while scheduler.stats()["num_requests"]:
        step = plan_step(scheduler)
        # A token is its context's length, so that what is computed anew must give the same.
        commit(scheduler, step, step["sequence_lengths"])
        for delta in take(scheduler):
            assert delta.offset == len(outputs[delta.request])
            outputs[delta.request] += delta.tokens
    assert outputs == {request: list(range(6, 14)) for request in (1, 2, 3)}
    stats = scheduler.stats()
    assert stats["num_preemptions"] > 0
    assert stats["num_computed_tokens"] > 3 * 13
    assert stats["num_free_blocks"] == 6


def test_the_samples_of_a_request_fork_after_one_prefill():
    scheduler = make_scheduler()
    add(scheduler, 1, [1, 2, 3, 4, 5, 6], max_tokens=2, n=3)
    prefill = plan_step(scheduler)
    assert len(prefill["tokens"]) == 6
    assert (prefill["logits_rows"], prefill["sampled_starts"]) == ([5, 5, 5], [0, 3])
    assert len(set(prefill["uniforms"])) == 3
    assert scheduler.schedule(0.0) is None  # a forking row waits for its commit
    commit(scheduler, prefill, [20, 21, 22])

    decode = plan_step(scheduler)
    assert decode["slot_copies"] == [0, 1, 0, 2]
    assert decode["tokens"] == [20, 21, 22]
    shared, partial = prefill["table_blocks"]
    sources, copies = decode["block_copies"][::2], decode["block_copies"][1::2]
    assert sources == [partial, partial]  # two samples write to copies, the third to the block itself
    assert decode["table_blocks"] == copies
    assert {place // 4 for place in decode["slot_mapping"]} == {partial, *copies}
    assert shared not in copies
    commit(scheduler, decode, [30, 31, 32])
    assert take(scheduler) == [Delta(1, i, 0, [20 + i, 30 + i], FinishCode.LENGTH, 0) for i in range(3)]
    assert scheduler.stats()["num_used_blocks"] == 0


def test_samples_without_a_slot_wait_and_find_their_prompt_cached():
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, 1, [50], max_tokens=2)
    add(scheduler, 2, range(9), max_tokens=2, n=2)
    commit(scheduler, plan_step(scheduler), [60, 20, 21])
    assert run_step(scheduler, 30)["tokens"] == [60, 20]
    assert run_step(scheduler, 31)["tokens"] == [8, 21]
    assert [delta.tokens for delta in take(scheduler)] == [[60, 30], [20, 30], [21, 31]]


def test_samples_of_one_step_are_bounded():
    scheduler = make_scheduler(max_num_seqs=4)
    for request in range(4):
        scheduler.add(0, request, pack([request, 1, 2]), seed=0, max_tokens=2, n=4)
    sampled = []
    while (plan := scheduler.schedule(0.0)) is not None:
        sections = read_plan(plan)
        sampled.append(len(sections["logits_rows"]))
        starts = sections["sampled_starts"]
        scheduler.commit(plan.step, starts.tobytes(), bytes(4 * int(starts[-1])))
    assert max(sampled) == 8
    assert sum(sampled) == 4 * 4 * 2


def test_more_samples_than_may_run_at_once_are_refused():
    scheduler = make_scheduler(max_num_seqs=3)
    with pytest.raises(SchedulerError, match="n is 4, and max_num_seqs is 3"):
        add(scheduler, 1, [1, 2], max_tokens=2, n=4)
    add(scheduler, 1, [1, 2], max_tokens=2, n=3)
    assert run_step(scheduler)["sampled_starts"] == [0, 3]


def test_with_overlap_a_token_in_flight_is_minus_one():
    scheduler = make_scheduler()
    add(scheduler, 1, [1, 2, 3], max_tokens=3)
    first, second, third = (plan_step(scheduler) for _ in range(3))
    assert [step["tokens"] for step in (first, second, third)] == [[1, 2, 3], [-1], [-1]]
    assert scheduler.schedule(0.0) is None  # all that it may generate is in flight
    with pytest.raises(SchedulerError, match="step 1 was committed before step 0"):
        commit(scheduler, second, [7])
    for step, token in ((first, 6), (second, 7), (third, 8)):
        commit(scheduler, step, [token])
    assert take(scheduler) == [Delta(1, 0, 0, [6, 7, 8], FinishCode.LENGTH, 0)]


def test_with_overlap_the_row_after_a_stop_token_is_dropped():
    scheduler = make_scheduler()
    scheduler.add(0, 1, pack([1, 2, 3]), seed=0, max_tokens=9, stop_token_ids=pack([50, 7]))
    first, second = plan_step(scheduler), plan_step(scheduler)
    commit(scheduler, first, [7])
    commit(scheduler, second, [8])
    assert take(scheduler) == [Delta(1, 0, 0, [7], FinishCode.STOP, 0)]
    assert scheduler.stats()["num_used_blocks"] == 0


def test_an_abort_is_answered_by_a_final_delta_and_frees_everything():
    scheduler = make_scheduler()
    add(scheduler, 1, range(9), max_tokens=5, n=2)
    run_step(scheduler, 20)
    in_flight = plan_step(scheduler)
    assert scheduler.abort(0, 1, 1)
    commit(scheduler, in_flight, [21, 22])
    assert scheduler.abort(0, 1)
    assert not scheduler.abort(0, 1)
    assert take(scheduler) == [
        Delta(1, 0, 0, [20, 21], FinishCode.ABORT, 0),
        Delta(1, 1, 0, [20], FinishCode.ABORT, 0),
    ]
    assert scheduler.stats()["num_used_blocks"] == 0


def test_a_resumed_request_goes_on_where_it_was():
    scheduler = make_scheduler()
    outputs = [(pack([20, 21]), False), (pack([30]), True), (b"", False)]
    scheduler.add(0, 1, pack([1, 2, 3]), seed=5, max_tokens=3, n=3, outputs=outputs)
    step = plan_step(scheduler)
    assert step["tokens"] == [1, 2, 3, 20, 21, 1, 2, 3]
    commit(scheduler, step, [22, 40])
    assert take(scheduler) == [
        Delta(1, 0, 2, [22], FinishCode.LENGTH, 0),
        Delta(1, 2, 0, [40], FinishCode.NONE, 0),
    ]


def test_a_lost_device_is_an_input():
    scheduler = make_scheduler()
    add(scheduler, 1, range(5), max_tokens=4)
    run_step(scheduler, 20)
    lost = plan_step(scheduler)
    scheduler.lose_device()
    with pytest.raises(SchedulerError, match="step 1 is not in flight"):
        commit(scheduler, lost, [21])
    again = run_step(scheduler, 21)
    assert again.id == 2
    assert again["tokens"] == [0, 1, 2, 3, 4, 20]
    assert again["slot_inits"] == again["slots"]
    assert [delta.tokens for delta in take(scheduler)] == [[20, 21]]


def test_a_held_request_neither_runs_nor_blocks_the_queue():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, 1, [1, 1], max_tokens=1)
    add(scheduler, 2, [2, 2], max_tokens=1)
    scheduler.hold(0, 1, "compiling a grammar")
    assert run_step(scheduler)["tokens"] == [2, 2]
    assert scheduler.schedule(0.0) is None
    scheduler.release(0, 1, "compiling a grammar")
    assert run_step(scheduler)["tokens"] == [1, 1]


def test_the_requests_of_a_client_that_is_gone_are_gone():
    scheduler = make_scheduler()
    for client in (0, 1):
        scheduler.add(client, 1, pack([1, 2]), seed=0, max_tokens=5)
    run_step(scheduler)
    scheduler.drop_client(0)
    assert scheduler.pending_clients() == [1]
    assert scheduler.take_deltas(0) is None
    assert scheduler.stats()["num_requests"] == 1


def test_what_can_never_fit_is_refused_with_the_numbers():
    scheduler = make_scheduler(num_blocks=4)
    with pytest.raises(NeverFitsError) as refused:
        add(scheduler, 1, range(12), max_tokens=6)
    assert str(refused.value) == (
        "a prompt of 12 tokens with max_tokens 6 holds 17 tokens in 5 blocks of 4, and the KV cache has 4 blocks "
        "(16 tokens); shorten the prompt, lower max_tokens, or enlarge the KV cache"
    )
    add(scheduler, 1, range(12), max_tokens=5)
    while scheduler.stats()["num_requests"]:
        run_step(scheduler)
