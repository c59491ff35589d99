"""The exchange between ranks on CPUs: every rank gets the bytes of the others, or an error when they do not come."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels._cpu import RankExchange

from tests.kernels.exchanges import exchanges, join, linked, start_rank, together

Bytes = npt.NDArray[np.uint8]
TRANSPORTS = ("in_memory", "over_tcp")
ROUND = 256 << 10  # bytes of a rank in one round of the transports
SIZES = st.sampled_from([0, 4, 20, 4096, ROUND - 4, ROUND, ROUND + 4, 2 * ROUND + 12])
SUMMED = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
COLLECTIVES = st.sampled_from(["all_gather", "gather", "broadcast", *SUMMED])


def numbers(seed: int, size: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def run(exchange: RankExchange, rank: int, size: int, calls: Sequence[tuple[str, int]]) -> list[Bytes | None]:
    """The results of a sequence of collectives of as many bytes, on one rank."""
    found: list[Bytes | None] = []
    for number, (collective, num_bytes) in enumerate(calls):
        part = numbers(100 * number + rank, num_bytes)
        whole: Bytes | None = np.empty(size * num_bytes, np.uint8)
        if collective == "all_gather":
            exchange.all_gather(part, whole)
        elif collective == "gather":
            whole = None if rank else whole
            exchange.gather(part, num_bytes // 4 or 1, whole)
        elif collective == "broadcast":
            exchange.broadcast(part)
            whole = part
        else:
            exchange.sum(collective, part)
            whole = part
        found.append(whole)
    return found


def expected(rank: int, size: int, calls: Sequence[tuple[str, int]]) -> list[Bytes | None]:
    """The same by numpy alone."""
    found: list[Bytes | None] = []
    for number, (collective, num_bytes) in enumerate(calls):
        parts = [numbers(100 * number + other, num_bytes) for other in range(size)]
        if collective == "all_gather":
            found.append(np.concatenate(parts))
        elif collective == "gather":
            rows = [part.reshape(4, -1) for part in parts]
            found.append(None if rank else np.concatenate(rows, axis=1).reshape(-1))
        elif collective == "broadcast":
            found.append(parts[0])
        else:
            dtype = SUMMED[collective]
            total = parts[0].view(dtype)
            with np.errstate(all="ignore"):
                for part in parts[1:]:
                    total += part.view(dtype)
            found.append(total.view(np.uint8))
    return found


def same(collective: str, found: Bytes | None, wanted: Bytes | None) -> bool:
    """Whether all bits are the same. A number that is none has many forms."""
    if found is None or wanted is None:
        return found is wanted
    if collective in SUMMED:
        dtype = SUMMED[collective]
        integers = np.uint32 if collective == "float32" else np.uint16
        with np.errstate(invalid="ignore"):
            neither = np.isnan(found.view(dtype)) & np.isnan(wanted.view(dtype))
        return bool((neither | (found.view(integers) == wanted.view(integers))).all())
    return np.array_equal(found, wanted)


@pytest.mark.parametrize("transport", TRANSPORTS)
@given(size=st.integers(1, 4), calls=st.lists(st.tuples(COLLECTIVES, SIZES), max_size=6))
def test_collectives_give_what_numpy_gives(transport: str, size: int, calls: list[tuple[str, int]]) -> None:
    """Among the random bits are all kinds of numbers: infinite ones, subnormal ones, none."""
    with exchanges(transport, size) as ranks:
        found = together([partial(run, exchange, rank, size, calls) for rank, exchange in enumerate(ranks)])
        for rank, results in enumerate(found):
            assert not isinstance(results, Exception), results
            for (collective, _), each, wanted in zip(calls, results, expected(rank, size, calls), strict=True):
                assert same(collective, each, wanted), (collective, rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_first_rank_broadcasts_and_waits_for_nobody_until_others_are_two_rounds_behind(transport: str) -> None:
    with exchanges(transport, 2) as (first, second):
        for value in (b"a", b"b"):
            first.broadcast(bytearray(value))
        found = []
        for _ in range(2):
            part = bytearray(1)
            second.broadcast(part)
            found.append(bytes(part))
        assert found == [b"a", b"b"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@given(messages=st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=2), max_size=8), size=st.integers(1, 2))
def test_messages_reach_the_next_stage_in_order(transport: str, messages: list[list[int]], size: int) -> None:
    num_stages = 3

    def pass_on(exchange: RankExchange, rank: int) -> list[Bytes]:
        exchange.allocate_messages(num_stages, 60_000)
        received = []
        for number, sizes in enumerate(messages):
            parts = [numbers(10 * number + index, count) + np.uint8(rank) for index, count in enumerate(sizes)]
            if rank >= size:
                before = [np.empty(count, np.uint8) for count in sizes]
                exchange.receive(before)
                received += before
                # A sum between two messages: both of a rank's exchanges go on side by side.
                exchange.sum("float32", bytearray(8))
            if rank < size * (num_stages - 1):
                exchange.send(parts)
        return received

    with exchanges(transport, size, num_stages) as ranks:
        found = together([partial(pass_on, exchange, rank) for rank, exchange in enumerate(ranks)])
        for rank, results in enumerate(found):
            assert not isinstance(results, Exception), results
            assert len(results) == (sum(map(len, messages)) if rank >= size else 0)
            wanted = [
                numbers(10 * number + index, count) + np.uint8(max(rank - size, 0))
                for number, sizes in enumerate(messages)
                for index, count in enumerate(sizes)
            ]
            for result, each in zip(results, wanted, strict=False):
                assert np.array_equal(result, each)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stage_sends_as_many_messages_as_there_is_room_for_without_a_receiver(transport: str) -> None:
    with exchanges(transport, 1, num_stages=2) as (first, second):
        for exchange in (first, second):
            exchange.allocate_messages(2, 8)
        first.send([bytearray(b"1"), bytearray(b"one")])
        first.send([bytearray(b"2")])
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(first.send, [bytearray(b"3")])
            found = [bytearray(4), bytearray(1), bytearray(1)]
            for part in found:
                second.receive([part])
            third.result()
        assert found == [b"1one", b"2", b"3"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_killed_is_an_error_of_those_that_wait_for_it(transport: str) -> None:
    size = 3
    with linked(transport, size) as link, start_rank(transport, link, 2, size) as process:
        ranks = [join(transport, link, rank, size) for rank in range(2)]
        together([partial(exchange.broadcast, bytearray(8)) for exchange in ranks])
        assert process.stdout is not None
        assert process.stdout.readline() == b"took part\n"

        def wait(exchange: RankExchange) -> None:
            exchange.sum("float32", bytearray(4))

        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(wait, exchange) for exchange in ranks]
            process.kill()
            errors = [each.exception() for each in waiting]
        assert all(isinstance(error, ConnectionError) for error in errors), errors
        assert any(str(error) == "rank 2 has ended" for error in errors)
        with pytest.raises(RuntimeError, match=r"an earlier exchange of this rank failed: rank \d has ended"):
            wait(ranks[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stage_that_has_ended_is_an_error_of_the_next_one(transport: str) -> None:
    with exchanges(transport, 1, num_stages=2) as ranks:
        for exchange in ranks:
            exchange.allocate_messages(2, 8)
        first, second = ranks
        first.send([bytearray(b"last")])
        ranks.clear()
        del first, exchange
        part = bytearray(4)
        second.receive([part])
        assert part == b"last"
        with pytest.raises(ConnectionError, match="rank 0 has ended"):
            second.receive([part])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_wait_is_bounded(transport: str) -> None:
    with exchanges(transport, 2, timeout=0.01) as (first, second):
        with pytest.raises(TimeoutError, match=r"rank 1 did not answer within 0\.01 s"):
            first.sum("float32", bytearray(4))
        second.sum("float32", bytearray(4))  # The first rank gave its part before it waited.
        with pytest.raises(ConnectionError, match="rank 0 has ended"):  # It takes no further part.
            second.sum("float32", bytearray(4))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda exchange: exchange.sum("float32", bytearray(8)), r"rank \d gave \d bytes, and this rank expected \d"),
        (lambda exchange: exchange.broadcast(bytearray(4)), "rank 0 takes part in another collective than this rank"),
    ],
)
def test_ranks_that_exchange_different_things_fail(transport: str, other: Any, text: str) -> None:
    with exchanges(transport, 2) as (first, second):
        calls = [partial(other, first), lambda: second.sum("float32", bytearray(4))]
        _, error = together(calls)
        assert isinstance(error, ValueError)
        with pytest.raises(ValueError, match=text):
            raise error


def test_wrong_arguments_are_refused_before_anything_is_exchanged() -> None:
    with exchanges("in_memory", 2, timeout=0.01) as (first, second):
        with pytest.raises(ValueError, match="room for 9 bytes, and the parts have 8"):
            first.all_gather(bytearray(4), bytearray(9))
        with pytest.raises(ValueError, match="the first rank of a stage, and no other, has room for all parts"):
            second.gather(bytearray(4), 4, bytearray(8))
        with pytest.raises(ValueError, match="4 bytes in rows of 3"):
            second.gather(bytearray(4), 3, None)
        with pytest.raises(ValueError, match="no sum of int8: use float32, bfloat16 or float16"):
            first.sum("int8", bytearray(4))
        with pytest.raises(ValueError, match="3 bytes that are no numbers of bfloat16"):
            first.sum("bfloat16", bytearray(3))
        with pytest.raises(ValueError, match="read-only"):
            first.broadcast(b"1")  # type: ignore[arg-type]  # so it must be refused
        with pytest.raises(ValueError, match="the last stage sends nothing"):
            first.send([bytearray(1)])
        with pytest.raises(ValueError, match="the first stage receives nothing"):
            first.receive([bytearray(1)])
    with pytest.raises(ValueError, match="rank 2 of 2 ranks in each of 1 stages"):
        RankExchange.in_memory(0, 2, 2, 1, 1.0)
    with pytest.raises(ValueError, match=r"sockets to the ranks \[\], and rank 0 exchanges with \[1, 2\]"):
        RankExchange.over_tcp([], 0, 2, 2, 1.0)
