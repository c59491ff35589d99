"""The border between Python and Rust: what may cross it, and how what may not is refused."""

import struct
import threading
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from pyllm import _rust
from pyllm.wire.plan_layout import PLAN_SECTIONS, plan_offsets
from tests.client.fake_core import STATS
from tests.plan_reader import read_plan

LIMITS = {
    "block_size": 4,
    "num_blocks": 16,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 48,
    "vocab_size": 1000,
}


def make_scheduler(**settings: Any) -> _rust.Scheduler:
    return _rust.Scheduler(**{**LIMITS, **settings}, enable_prefix_caching=True)


def int32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def planned(scheduler: _rust.Scheduler) -> _rust.Plan:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    return plan


def philox_uniform(seed: int, position: int, sample: int) -> float:
    """Philox4x32-10, written down from the paper a second time."""
    mask = 2**32 - 1
    key = [seed & mask, seed >> 32]
    counter = [position, sample, 0, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [second >> 32 ^ counter[1] ^ key[0], second & mask, first >> 32 ^ counter[3] ^ key[1], first & mask]
        key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
    return float(np.float32(((counter[0] >> 8) + 0.5) / 2**24))


def test_the_sections_of_a_plan_are_those_of_the_wire():
    assert _rust.SECTIONS == PLAN_SECTIONS


def test_a_plan_is_a_read_only_buffer_of_its_sections():
    scheduler = make_scheduler()
    scheduler.add(0, 7, int32(1, 2, 3, 4, 5), seed=0, max_tokens=2, sampling=b"opaque")
    plan = planned(scheduler)
    view = memoryview(plan)
    assert (view.readonly, view.contiguous, view.format, view.ndim) == (True, True, "B", 1)
    assert (plan.step, plan.num_tokens, plan.num_rows) == (0, 5, 1)
    assert plan.counts == [5, 5, 5, 2, 1, 1, 1, 2, 1, 2, 2, 2, 0, 0, 0, 1, 2, 6, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    *offsets, size = plan_offsets(tuple(plan.counts))
    assert all(offset % 64 == 0 for offset in offsets)
    assert view.nbytes == size
    assert np.frombuffer(view[:20], np.int32).tolist() == [1, 2, 3, 4, 5]
    assert bytes(view[offsets[17] :][:6]) == b"opaque"


def test_the_plan_of_a_stateful_request_has_its_tokens():
    scheduler = make_scheduler()
    outputs = [(int32(4, 5), False)]
    scheduler.add(0, 7, int32(1, 2, 3), seed=0, max_tokens=4, stateful=True, outputs=outputs)
    scheduler.add(0, 8, int32(1, 2, 3), seed=0, max_tokens=4, outputs=outputs)
    sections = read_plan(planned(scheduler))
    assert sections["histories"].tolist() == [1, 2, 3, 4, 5]
    assert sections["history_starts"].tolist() == [0, 5, 5]
    assert sections["prompt_lengths"].tolist() == [3, 3]


def test_a_view_outlives_its_plan():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(11, 12), seed=0, max_tokens=1)
    view = memoryview(planned(scheduler))
    del scheduler
    assert bytes(view[:8]) == int32(11, 12)


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**64 - 1])
def test_uniforms_are_philox_of_seed_position_and_sample(seed: int):
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2), seed=seed, max_tokens=3, n=3)
    for position in range(3):
        plan = planned(scheduler)
        start = plan_offsets(tuple(plan.counts))[8]
        uniforms = np.frombuffer(memoryview(plan)[start : start + 12], np.float32).tolist()
        assert uniforms == [philox_uniform(seed, position, sample) for sample in range(3)]
        rows = (0, 3) if position == 0 else (0, 1, 2, 3)
        scheduler.commit(plan.step, int32(*rows), int32(5, 6, 7))


@pytest.mark.parametrize(
    "buffer",
    [bytes, bytearray, memoryview, lambda packed: array("i", packed), lambda packed: np.frombuffer(packed, "<i4")],
)
def test_commit_takes_any_buffer_of_bytes_or_int32(buffer: Callable[[bytes], Any]):
    scheduler = make_scheduler()
    scheduler.add(3, 2**64 - 1, int32(1, 2), seed=0, max_tokens=1, stop_token_ids=int32(9, 42))
    assert scheduler.commit(planned(scheduler).step, buffer(int32(0, 1)), buffer(int32(42))) == [3]
    assert scheduler.pending_clients() == [3]
    requests, samples, offsets, starts, tokens, finishes, cached, *rest = scheduler.take_deltas(3) or ()
    assert requests == struct.pack("<Q", 2**64 - 1)
    assert (samples, offsets, starts, tokens, cached) == (int32(0), int32(0), int32(0, 1), int32(42), int32(0))
    assert finishes == b"\x01"
    assert rest == [*[b""] * 6, int32(0), struct.pack("<f", 0.0), struct.pack("<f", 0.0)]
    assert scheduler.take_deltas(3) is None


@pytest.mark.parametrize(
    ("starts", "tokens", "problem"),
    [
        (int32(0, 1)[:-1], int32(1), "starts has 7 bytes"),
        (array("f", [0.0, 1.0]), int32(1), "starts has elements of format f"),
        (np.array([0, 1]), int32(1), "starts has elements of format l"),
        (int32(0, 2), int32(1, 2), "row 0 has 2 tokens, and the plan asks for 1"),
        (int32(0), int32(1), "it has 0 rows and the plan 1"),
        (int32(0, 1), int32(), "it has 0 tokens, and its starts end at 1"),
        (int32(0, 1), int32(-1), "token 0 is -1"),
    ],
)
def test_a_result_of_another_shape_is_refused_and_the_right_one_then_taken(starts: Any, tokens: Any, problem: str):
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2), seed=0, max_tokens=1)
    plan = planned(scheduler)
    with pytest.raises(_rust.SchedulerError, match=problem):
        scheduler.commit(plan.step, starts, tokens)
    assert scheduler.commit(plan.step, int32(0, 1), int32(5)) == [0]


def test_log_probabilities_go_through_and_those_of_the_prompt_come_first():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2, 3), seed=0, max_tokens=2, prompt_logprobs=True)
    scheduler.add(0, 2, int32(1), seed=0, max_tokens=2)
    values = struct.pack("<4f", -0.5, -0.25, -1.5, -2.0)
    logprobs = (int32(0, 2, 2), int32(2, 3), int32(0, 1, 2, 4, 4), int32(2, 3, 5, 9), values, int32(4, 3, 1, 2))
    wrong = (*logprobs[:1], int32(2, 4), *logprobs[2:])
    step = planned(scheduler).step
    with pytest.raises(_rust.SchedulerError, match="row 0 tells of 2 tokens that do not follow the prompt's first 1"):
        scheduler.commit(step, int32(0, 1, 2), int32(5, 6), logprobs=wrong)
    with pytest.raises(_rust.SchedulerError, match="logprob_values has 15 bytes; float32"):
        scheduler.commit(step, int32(0, 1, 2), int32(5, 6), logprobs=(*logprobs[:4], values[:-1], logprobs[5]))
    scheduler.commit(step, int32(0, 1, 2), int32(5, 6), logprobs=logprobs)
    requests, _, offsets, starts, tokens, _, _, *columns = (scheduler.take_deltas(0) or ())[:11]
    assert (requests, offsets) == (struct.pack("<3Q", 1, 1, 2), int32(-2, 0, 0))
    assert (starts, tokens) == (int32(0, 2, 3, 4), int32(2, 3, 5, 6))
    assert columns == [int32(0, 1, 2, 4, 4), *logprobs[3:]]


def test_a_beam_search_goes_on_by_log_probabilities_and_gives_its_best():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2, 3), seed=0, max_tokens=1, n=2, beam_width=2, length_penalty=0.5)
    step = planned(scheduler).step
    with pytest.raises(_rust.SchedulerError, match="row 0 is a beam's and has 0 candidates of 4"):
        scheduler.commit(step, int32(0, 2), int32(9, 9))
    values = struct.pack("<5f", -8.0, -0.5, -1.5, -2.0, -2.5)
    logprobs = (int32(0, 0), b"", int32(0, 5, 5), int32(9, 4, 5, 6, 7), values, int32(9, 1, 2, 3, 4))
    scheduler.commit(step, int32(0, 2), int32(9, 9), logprobs=logprobs)
    _, samples, offsets, _, tokens, finishes, _, *columns = (scheduler.take_deltas(0) or ())[:11]
    assert (samples, offsets, tokens, finishes) == (int32(0, 1), int32(0, 0), int32(4, 5), b"\x02\x02")
    assert columns == [int32(0, 1, 2), int32(4, 5), struct.pack("<2f", -0.5, -1.5), int32(1, 2)]


def test_a_row_of_a_step_in_flight_has_a_request_until_it_ends():
    scheduler = make_scheduler()
    scheduler.add(3, 8, int32(1, 2), seed=0, max_tokens=1)
    step = planned(scheduler).step
    assert scheduler.request_of(step, 0) == (3, 8)
    with pytest.raises(_rust.SchedulerError, match="names row 1, and the plan has 1"):
        scheduler.request_of(step, 1)
    with pytest.raises(_rust.SchedulerError, match="step 1 is not in flight"):
        scheduler.request_of(step + 1, 0)
    scheduler.abort(3, 8)
    assert scheduler.request_of(step, 0) is None
    scheduler.commit(step, int32(0, 0), int32())


def test_the_requests_in_flight_are_named_once_until_they_end():
    scheduler = make_scheduler()
    scheduler.add(3, 8, int32(1, 2), seed=0, max_tokens=4)
    scheduler.add(4, 8, int32(7), seed=0, max_tokens=4)
    assert scheduler.requests_in_flight() == []
    first = planned(scheduler).step
    planned(scheduler)
    assert scheduler.requests_in_flight() == [(3, 8), (4, 8)]
    assert scheduler.expected_seconds(first) is None
    with pytest.raises(_rust.SchedulerError, match="step 9 is not in flight"):
        scheduler.expected_seconds(9)
    scheduler.commit(first, int32(0, 1, 2), int32(3, 8), 0.5)
    scheduler.abort(4, 8)
    assert scheduler.requests_in_flight() == [(3, 8)]
    scheduler.commit(1, int32(0, 1, 2), int32(4, 9), 0.25)
    assert scheduler.expected_seconds(planned(scheduler).step) == 0.25
    assert scheduler.history(3, 8) == (int32(1, 2), [int32(3, 4)])
    scheduler.lose_device()
    assert scheduler.requests_in_flight() == []
    with pytest.raises(_rust.SchedulerError, match="client 4 has no live request 8"):
        scheduler.history(4, 8)


def test_a_request_is_isolated_until_it_has_one_more_token():
    scheduler = make_scheduler()
    for request in (1, 2):
        scheduler.add(0, request, int32(request), seed=0, max_tokens=4)
    scheduler.isolate(0, 1)
    assert scheduler.isolated() == (0, 1)
    with pytest.raises(_rust.SchedulerError, match="request 1 of client 0 is isolated already"):
        scheduler.isolate(0, 2)
    step = planned(scheduler).step
    assert scheduler.requests_in_flight() == [(0, 1)]
    assert [one["reason"] for one in scheduler.explain(0, 2)] == ["isolation"]
    scheduler.commit(step, int32(0, 1), int32(5))
    assert scheduler.isolated() is None
    scheduler.hold(0, 2, "test")
    scheduler.isolate(0, 2)
    assert scheduler.isolated() == (0, 2), "it begins when nobody holds it"
    with pytest.raises(_rust.SchedulerError, match="no live request 3"):
        scheduler.isolate(0, 3)


def test_deadlines_pass_without_a_step():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1), seed=0, max_tokens=4, deadline=2.0)
    scheduler.expire(1.0)
    assert scheduler.pending_clients() == []
    scheduler.expire(2.0)
    assert scheduler.pending_clients() == [0]
    with pytest.raises(_rust.SchedulerError, match="now is 1 after 2"):
        scheduler.expire(1.0)


def test_what_is_not_a_buffer_is_a_type_error():
    scheduler = make_scheduler()
    with pytest.raises(TypeError):
        scheduler.commit(0, [0, 1], [5])
    with pytest.raises(TypeError):
        scheduler.add(0, 1, [1, 2], seed=0, max_tokens=1)


@pytest.mark.parametrize("given", [{"seed": 0}, {"max_tokens": 1}])
def test_a_request_names_its_seed_and_its_length(given: dict[str, int]):
    with pytest.raises(TypeError, match="missing 1 required keyword argument"):
        make_scheduler().add(0, 1, int32(1), **given)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"prompt": b""}, "the prompt is empty"),
        ({"prompt": b"123"}, "prompt has 3 bytes"),
        ({"prompt": int32(1, -4)}, "prompt has token -4 at index 1, and vocab_size is 1000; give ids from 0 to 999"),
        ({"prompt": int32(1, 2, 1000)}, "prompt has token 1000 at index 2, and vocab_size is 1000"),
        ({"outputs": [(int32(2**31 - 1), False)]}, "outputs has token 2147483647 at index 0, and vocab_size is 1000"),
        ({"outputs": [(int32(-1), False)]}, "outputs has token -1 at index 0"),
        ({"request": -1}, "request is -1"),
        ({"request": 2**64}, "request is 18446744073709551616"),
        ({"client": 2**32}, "client is 4294967296"),
        ({"seed": -1}, "seed is -1"),
        ({"max_tokens": -5}, "max_tokens is -5"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"n": 0}, "n must be from 1 to 16384"),
        ({"n": 5}, "n is 5, and max_num_seqs is 4"),
        ({"n": 2**40}, "n is 1099511627776"),
        ({"priority": 2**31}, "priority is 2147483648"),
        ({"arrival": float("inf")}, "arrival must be a finite number"),
        ({"stop_token_ids": b"x"}, "stop_token_ids has 1 bytes"),
        ({"outputs": [(b"xx", False)]}, "outputs has 2 bytes"),
        ({"outputs": [(int32(1), False), (b"", False)]}, "outputs has 2 samples and n is 1"),
        ({"outputs": [(int32(1), True)]}, "all samples are finished"),
        ({"beam_width": 2}, "n is 1 and beam_width 2"),
        ({"beam_width": -1}, "beam_width is -1"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        ({"outputs": [(int32(1, 2, 3, 4), False)]}, "sample 0 has 4 output tokens of at most 4"),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(wrong: dict[str, Any], problem: str):
    scheduler = make_scheduler()
    valid = {"client": 0, "request": 1, "prompt": int32(1, 2), "seed": 0, "max_tokens": 4}
    with pytest.raises(_rust.SchedulerError, match=problem):
        scheduler.add(**{**valid, **wrong})
    assert scheduler.stats()["num_requests"] == 0
    scheduler.add(**valid)
    with pytest.raises(_rust.SchedulerError, match="request 1 of client 0 exists already"):
        scheduler.add(**valid)


def test_what_can_never_fit_is_an_error_of_its_own():
    scheduler = make_scheduler(num_blocks=8)
    with pytest.raises(_rust.NeverFitsError, match="the prompt has 48 tokens, and max_model_len is 48"):
        scheduler.add(0, 1, int32(*range(48)), seed=0, max_tokens=1)
    needs = "30 tokens with max_tokens 4 holds 33 tokens in 9 blocks of 4, and the KV cache has 8 blocks .32 tokens."
    with pytest.raises(_rust.NeverFitsError, match=needs):
        scheduler.add(0, 1, int32(*range(30)), seed=0, max_tokens=4)
    scheduler.add(0, 1, int32(*range(30)), seed=0, max_tokens=3)
    assert issubclass(_rust.NeverFitsError, _rust.SchedulerError)
    assert issubclass(_rust.SchedulerError, ValueError)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"block_size": 0}, "block_size must be from 1 to 2147483647, not 0"),
        ({"max_num_seqs": 65_537}, "max_num_seqs must be from 1 to 65536, not 65537"),
        ({"max_model_len": 1}, "max_model_len must be from 2"),
        ({"vocab_size": 0}, "vocab_size must be from 1 to 2147483647, not 0"),
        ({"num_blocks": -1}, "num_blocks is -1"),
        ({"num_blocks": 2**30}, "num_blocks 1073741824 times block_size 4 is 4294967296 tokens"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, int], problem: str):
    with pytest.raises(_rust.SchedulerError, match=problem):
        make_scheduler(**limits)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"incarnation": -1}, "incarnation is -1; give a number that fits its type"),
        ({"incarnation": 2**64}, "incarnation is 18446744073709551616"),
        ({"tenant_weights": {"acme": -1}}, r"tenant_weights\.acme is -1"),
        ({"watermark": 10**400}, "watermark is 10{20}"),
        ({"swap_block_seconds": -1.0}, "swap_block_seconds must be"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], problem: str):
    with pytest.raises(_rust.SchedulerError, match=problem):
        make_scheduler(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"incarnation": 1.5},
        {"incarnation": "1"},
        {"watermark": "0.1"},
        {"expected_growth": None},
        {"tenant_weights": {"acme": 1.5}},
        {"tenant_weights": {1: 1}},
        {"tenant_weights": "acme=1"},
        {"policy": 3},
        {"colour": 3},
    ],
)
def test_settings_of_another_type_are_type_errors(settings: dict[str, Any]):
    with pytest.raises(TypeError):
        make_scheduler(**settings)


def test_times_beyond_all_floats_are_refused():
    scheduler = make_scheduler()
    with pytest.raises(_rust.SchedulerError, match=r"now is 10{400}; give a number that fits f64"):
        scheduler.schedule(10**400)
    with pytest.raises(_rust.SchedulerError, match=r"deadline is 10{20}"):
        scheduler.add(0, 1, int32(1), seed=0, max_tokens=1, deadline=10**400)


def test_wrong_ids_and_times_are_refused():
    scheduler = make_scheduler()
    with pytest.raises(_rust.SchedulerError, match="step 3 is not in flight"):
        scheduler.commit(3, b"", b"")
    with pytest.raises(_rust.SchedulerError, match="client 0 has no live request 1"):
        scheduler.hold(0, 1, "compiling")
    with pytest.raises(_rust.SchedulerError, match="client 0 has no live request 1"):
        scheduler.release(0, 1, "compiling")
    scheduler.drop_client(5)
    assert scheduler.schedule(10.0) is None
    for now in (9.0, float("nan")):
        with pytest.raises(_rust.SchedulerError, match="a clock that never goes back"):
            scheduler.schedule(now)


@pytest.mark.parametrize("name", [(0, 2), (1, 1), (-1, 1), (0, -1), (0, 2**64), (0, 1, 1), (0, 1, -2), (0, 1, 2**31)])
def test_aborting_what_is_not_there_is_no_error(name: tuple[int, ...]):
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1), seed=0, max_tokens=1)
    assert scheduler.abort(*name) is False
    assert scheduler.abort(0, 1, 0) is True


def test_each_holder_holds_and_releases_its_own():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1), seed=0, max_tokens=1)
    with pytest.raises(_rust.SchedulerError, match="request 1 is not held by grammar"):
        scheduler.release(0, 1, "grammar")
    scheduler.hold(0, 1, "grammar")
    with pytest.raises(_rust.SchedulerError, match="request 1 is held by grammar already"):
        scheduler.hold(0, 1, "grammar")
    scheduler.hold(0, 1, "adapter")
    assert scheduler.explain(0, 1)[0]["hold"] == "grammar, adapter"
    scheduler.release(0, 1, "grammar")
    assert scheduler.stats()["num_held"] == 1
    assert scheduler.schedule(0.0) is None
    scheduler.release(0, 1, "adapter")
    assert scheduler.stats()["num_held"] == 0


def test_adapters_have_slots_of_the_device_and_counts():
    scheduler = make_scheduler(max_loras=1)
    for request, number in enumerate((0, 7, 9)):
        adapter = f"adapter {number}" if number else ""
        scheduler.add(
            0, request, int32(request), seed=0, max_tokens=2, arrival=request, adapter=adapter, adapter_number=number
        )
    sections = read_plan(planned(scheduler))
    assert sections["adapter_slots"].tolist() == [-1, 0]
    assert sections["adapter_loads"].tolist() == [0, 7]
    assert scheduler.adapter_counts() == [(7, 1, 0), (9, 0, 1)]
    assert scheduler.explain(0, 2)[0]["reason"] == "adapters"
    with pytest.raises(_rust.SchedulerError, match='adapter is "" and adapter_number 7'):
        scheduler.add(0, 4, int32(1), seed=0, max_tokens=1, adapter_number=7)
    with pytest.raises(_rust.SchedulerError, match="max_loras is 0"):
        make_scheduler().add(0, 4, int32(1), seed=0, max_tokens=1, adapter="a", adapter_number=7)


def test_threads_may_share_a_scheduler():
    scheduler = make_scheduler()

    def add(client: int) -> None:
        for request in range(200):
            scheduler.add(client, request, int32(client, request), seed=0, max_tokens=1)
            scheduler.stats()

    threads = [threading.Thread(target=add, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scheduler.stats()["num_requests"] == 800


def test_what_is_counted_by_bounds_has_vllms():
    figures = [name for name in make_scheduler().stats() if "_le_" in name]
    assert figures == [name for name in STATS if "_le_" in name]


def test_the_first_row_of_a_request_says_when_it_began():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2, 3), seed=0, max_tokens=2, arrival=1.0)
    for now, expected in ((3.5, (int32(0), struct.pack("<f", 2.5), struct.pack("<f", 0.25))), (4.0, (b"", b"", b""))):
        plan = scheduler.schedule(now)
        assert plan is not None
        scheduler.commit(plan.step, int32(0, 1), int32(9), 0.25)
        assert tuple(scheduler.take_deltas(0) or ())[-3:] == expected


def test_an_embedding_ends_its_request():
    scheduler = make_scheduler()
    scheduler.add(0, 1, int32(1, 2, 3), seed=0, max_tokens=0, pooling="last")
    scheduler.add(0, 2, int32(4), seed=0, max_tokens=2)
    plan = planned(scheduler)
    vector = np.array([0.25, -1.5], np.float32).tobytes()
    with pytest.raises(_rust.SchedulerError, match="row 0 asks for an embedding and has none"):
        scheduler.commit(plan.step, int32(0, 1, 2), int32(9, 9), embeddings=(int32(0, 0, 2), vector))
    with pytest.raises(_rust.SchedulerError, match="embeddings has 7 bytes"):
        scheduler.commit(plan.step, int32(0, 1, 2), int32(9, 9), embeddings=(int32(0, 2, 2), vector[:7]))
    scheduler.commit(plan.step, int32(0, 1, 2), int32(9, 9), embeddings=(int32(0, 2, 2), vector))
    columns = scheduler.take_deltas(0) or ()
    assert struct.unpack("<2Q", columns[0]) == (1, 2)
    assert (columns[3], columns[4], columns[5]) == (int32(0, 0, 1), int32(9), bytes([1, 0]))
    assert list(columns[11:14]) == [int32(0, 2, 2), vector, int32(0, 1)]
    with pytest.raises(_rust.SchedulerError, match="max_tokens excludes pooling"):
        scheduler.add(0, 3, int32(1), seed=0, max_tokens=1, pooling="last")


@pytest.mark.parametrize("is_array", [False, True])
def test_events_tell_of_states_as_blocks_of_a_further_group(is_array: bool) -> None:
    scheduler = make_scheduler(num_states=4, enable_kv_cache_events=True)
    scheduler.add(0, 1, int32(*range(9)), seed=0, max_tokens=1)
    plan = planned(scheduler)
    scheduler.commit(plan.step, read_plan(plan)["sampled_starts"], int32(7))
    hashes = [event[1] for event in scheduler.events(0, 10)[2]]
    batch = scheduler.event_batch(0.0, 0, is_array=is_array)
    assert batch is not None
    events = msgspec.msgpack.decode(batch[1])[1]
    if is_array:
        assert [event[1] for event in events] == [hashes[:2]], "a state would be taken for a block"
        return
    assert [event["block_hashes"] for event in events] == [hashes[:2], hashes[1:2]]
    assert [event["group_idx"] for event in events] == [0, 1]
    assert [event["kv_cache_spec_kind"] for event in events] == ["full_attention", "mamba"]
    assert events[1]["parent_block_hash"] == hashes[0]
