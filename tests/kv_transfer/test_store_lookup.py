"""What the store has of a request: the longest start that a sequence can go on from, on every rank."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import BlockLoad, ConnectorContext, SchedulerOutput, TransferRequest
from pyllm.kv_transfer.store_lookup import MAX_LOOKUPS, StoreLookup, StoreMetadata
from pyllm.kv_transfer.store_settings import block_key
from tests.kv_transfer.dict_store import DictStore, forget_all
from tests.kv_transfer.gated_store import GatedStore

BLOCK_SIZE = 4
CONFIG = KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config={"lookup_timeout": 3.0})


def context(windows: tuple[int | None, ...] = (None,), num_ranks: int = 1, state_blocks: int = 0) -> ConnectorContext:
    return ConnectorContext(
        namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=num_ranks, windows=windows, state_blocks=state_blocks
    )


def request(num_blocks: int) -> TransferRequest:
    return TransferRequest("0/1", tuple(bytes([index]) * 32 for index in range(num_blocks)))


def answer(lookup: StoreLookup, threads: ThreadPoolExecutor, of: TransferRequest, num_computed: int) -> int:
    """What it says once it knows."""
    while (found := lookup.get_num_new_matched_tokens(of, num_computed)[0]) is None:
        threads.submit(bool).result()  # comes after it
    return found


@given(
    num_blocks=st.integers(1, 8),
    num_computed=st.integers(0, 8),
    windows=st.lists(st.none() | st.integers(1, 14), min_size=1, max_size=3).map(tuple),
    num_ranks=st.integers(1, 2),
    state_blocks=st.sampled_from((0, 3)),
    data=st.data(),
)
def test_the_longest_start_of_which_all_that_is_read_later_is_known(
    num_blocks: int,
    num_computed: int,
    windows: tuple[int | None, ...],
    num_ranks: int,
    state_blocks: int,
    data: st.DataObject,
) -> None:
    forget_all()
    store, of, num_computed = DictStore("lookup"), request(num_blocks), min(num_computed, num_blocks)
    places = [(index, group) for index in range(num_blocks) for group in range(len(windows) + bool(state_blocks))]
    known = data.draw(st.sets(st.sampled_from(places)))
    where = context(windows, num_ranks, state_blocks)
    threads = ThreadPoolExecutor(1)
    lookup = StoreLookup(CONFIG, where, store, threads=threads)
    for index, group in known:
        for rank in range(num_ranks):
            store.blocks[block_key(where.namespace, of.block_hashes[index], group, rank)] = 0, b""

    def goes_on(length: int) -> bool:
        reads = (
            (index, group)
            for group, window in enumerate(windows)
            for index in range(length)
            if window is None or (index + 1) * BLOCK_SIZE > length * BLOCK_SIZE + 1 - window
        )
        if state_blocks and (length - 1, len(windows)) not in known:
            return False
        return all(index < num_computed or (index, group) in known for index, group in reads)

    longest = max(length for length in range(num_computed, num_blocks + 1) if length == num_computed or goes_on(length))
    assert answer(lookup, threads, of, num_computed * BLOCK_SIZE) == (longest - num_computed) * BLOCK_SIZE
    lookup.shutdown()


def test_a_look_up_that_takes_too_long_is_given_up() -> None:
    store, now = GatedStore("slow", "lookup"), 0.0
    lookup = StoreLookup(CONFIG, context(), store, clock=lambda: now)
    assert lookup.get_num_new_matched_tokens(request(2), 0) == (None, True)
    now = 2.9
    assert lookup.get_num_new_matched_tokens(request(2), 0) == (None, True)
    now = 3.0
    assert lookup.get_num_new_matched_tokens(request(2), 0) == (0, True)
    store.gate.set()
    lookup.shutdown()


def test_calls_that_do_not_return_are_bounded_and_those_given_up_before_they_begin_are_not_made() -> None:
    store, threads, now = GatedStore("bounded", "lookup"), ThreadPoolExecutor(1), 0.0
    lookup = StoreLookup(CONFIG, context(), store, clock=lambda: now, threads=threads)

    def ask(name: str) -> int | None:
        return lookup.get_num_new_matched_tokens(TransferRequest(name, request(2).block_hashes), 0)[0]

    names = [str(number) for number in range(MAX_LOOKUPS)]
    assert [ask(name) for name in names] == [None] * MAX_LOOKUPS
    store.has_begun.wait()
    assert ask("beyond") == 0
    lookup.request_finished(TransferRequest("1", ()), ())
    now = 3.0
    assert [ask(name) for name in names if name != "1"] == [0] * (MAX_LOOKUPS - 1)
    assert ask("beyond") == 0, "nobody waits for the calls, but they are there"
    store.gate.set()
    threads.submit(bool).result()  # comes after them
    assert store.num_calls == 1
    assert ask("beyond") is None
    threads.submit(bool).result()
    assert (ask("beyond"), store.num_calls) == (0, 2)
    lookup.shutdown()


def test_a_load_names_each_block_of_each_group_the_first_tokens_first() -> None:
    lookup = StoreLookup(CONFIG, context((None, 6)), DictStore("meta"))
    load = BlockLoad(7, request(4), 4, 12, ((10, 11, 12), (20, 21)), None)
    metadata = msgspec.msgpack.decode(lookup.build_connector_meta(SchedulerOutput([load])), type=StoreMetadata)
    (told,) = metadata.loads
    hashes = request(4).block_hashes
    assert told.blocks == (10, 11, 20, 12, 21)
    assert told.groups == (0, 0, 1, 0, 1)
    assert told.hashes == (hashes[1], hashes[2], hashes[2], hashes[3], hashes[3])
    assert (told.id, told.is_awaited) == (7, False)
    assert lookup.build_connector_meta(SchedulerOutput()) == b""
    lookup.shutdown()
