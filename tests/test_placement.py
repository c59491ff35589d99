"""`pyllm._rust.Placement` as the client calls it. What it chooses is tested in Rust, beside the code."""

import struct
from typing import Any

import pytest

from pyllm._rust import Placement, Scheduler
from pyllm.config.engine_settings import MAX_CORES

BLOCK_SIZE = 4


def make_scheduler(**settings: Any) -> Scheduler:
    limits = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 200}
    return Scheduler(block_size=BLOCK_SIZE, vocab_size=1000, **(limits | settings))


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def run(scheduler: Scheduler, prompt: bytes, request: int) -> None:
    """Give a request its one output token."""
    scheduler.add(0, request, prompt, seed=0, max_tokens=1)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.commit(plan.step, packed(0, 1), packed(5), 0.01)
    scheduler.take_deltas(0)


def tell(placement: Placement, core: int, scheduler: Scheduler, *, number: int = -1, last_request: int = -1) -> int:
    """Ask until there is no more; the number to ask with next time."""
    while True:
        following, changes, load = scheduler.load_report(number)
        placement.update_core(core, last_request, changes, load)
        if following == number:
            return number
        number = following


def test_a_request_goes_where_its_prefix_is() -> None:
    placement = Placement(block_size=BLOCK_SIZE)
    schedulers = [make_scheduler(), make_scheduler()]
    for core, scheduler in enumerate(schedulers):
        placement.add_core(core)
        tell(placement, core, scheduler)
    prompt = packed(*range(10))
    run(schedulers[1], prompt, 0)
    tell(placement, 1, schedulers[1])
    assert placement.place(0, prompt, 10, [0, 1]) == (1, 8)
    assert placement.place(1, prompt, 10, [0], tenant="other") == (0, 0)
    assert placement.place(2, prompt, 10, [0, 1], tenant="other")[1] == 8


def test_changes_go_on_from_a_number() -> None:
    placement, scheduler = Placement(block_size=BLOCK_SIZE), make_scheduler()
    placement.add_core(7)
    number = tell(placement, 7, scheduler)
    prompt = packed(*range(10))
    run(scheduler, prompt, 0)
    assert placement.place(0, prompt, 1, [7]) == (7, 0)
    placement.ended(0)
    number = tell(placement, 7, scheduler, number=number)
    assert placement.place(1, prompt, 1, [7]) == (7, 8)
    scheduler.reset_prefix_cache()
    tell(placement, 7, scheduler, number=number)
    assert placement.place(2, prompt, 1, [7]) == (7, 0)
    assert placement.place(3, prompt, 1, [7]) == (7, 8)  # request 2 is about to compute it


def test_a_recording_replays_to_the_same_choices() -> None:
    placement, scheduler = Placement(block_size=BLOCK_SIZE, prefix_hash="sha256_cbor"), make_scheduler()
    placement.start_recording()
    for core in range(3):
        placement.add_core(core)
    tell(placement, 1, scheduler)
    for request in range(20):
        placement.place(request, packed(*range(request)), 9, [0, 1, 2], session=str(request % 4))
    placement.ended(3)
    placement.remove_core(2)
    report = Placement.replay(placement.take_recording())
    assert (report["num_entries"], report["num_choices"], report["is_truncated"]) == (27, 20, False)
    with pytest.raises(ValueError, match="this is no recording of this version"):
        Placement.replay(b"other")


def test_what_is_not_there_is_refused() -> None:
    placement = Placement(block_size=BLOCK_SIZE)
    placement.add_core(0)
    placement.place(5, b"", 1, [0])
    with pytest.raises(ValueError, match="request 5 comes after request 5"):
        placement.place(5, b"", 1, [0])
    with pytest.raises(ValueError, match="there is no core for request 6"):
        placement.place(6, b"", 1, [])
    with pytest.raises(ValueError, match="core 1 is not there"):
        placement.place(6, b"", 1, [0, 1])
    with pytest.raises(ValueError, match="core 1 is not there"):
        placement.remove_core(1)
    with pytest.raises(ValueError, match="core 0 is there already"):
        placement.add_core(0)
    with pytest.raises(ValueError, match="cannot decode the load report of core 0"):
        placement.update_core(0, -1, b"", b"")
    with pytest.raises(ValueError, match="block_size is 0"):
        Placement(block_size=0)
    with pytest.raises(ValueError, match="unknown variant"):
        Placement(block_size=4, prefix_hash="md5")
    for core in range(1, MAX_CORES):
        placement.add_core(core)
    with pytest.raises(ValueError, match=f"there are {MAX_CORES} cores"):
        placement.add_core(MAX_CORES)
