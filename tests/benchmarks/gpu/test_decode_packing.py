"""Shares of decode attention, as a simulation of a card plays them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels.cards import Card
from pyllm_kernels.decode_shares import ROW_TILES, count_shares, cut_rows

from benchmarks.gpu.decode_packing import CASES, Places, by_equal_splits, by_shares, figures, makespan, packing

LENGTHS = st.lists(st.integers(1, 300) | st.integers(1, 40_000), min_size=1, max_size=300)
PLACES = st.builds(
    Places,
    num_multiprocessors=st.sampled_from([4, 14, 60, 108, 132, 148]),
    programs_per_multiprocessor=st.integers(1, 6),
    kv_heads=st.sampled_from([1, 2, 3, 7, 8, 16, 32, 64]),
    block_n=st.sampled_from([16, 32, 64, 128]),
)


@pytest.mark.parametrize("case", CASES)
def test_shares_fill_the_card(case: str) -> None:
    rows, context = CASES[case]
    lengths = np.full(rows, context, np.int32)
    assert packing(lengths, Places()) >= 0.93
    assert packing(lengths, Places()) > packing(lengths, Places(), before=True)


def test_the_figures_show_them() -> None:
    lines = list(figures(Places()))
    assert [line["case"] for line in lines] == list(CASES)
    assert [line["before"] for line in lines] == [0.862, 0.94, 0.781, 0.862]  # as in the audit


def test_the_table_of_tiles_agrees() -> None:
    assert Places.of(Card(90, 132), 8, 128) == Places()


@given(lengths=LENGTHS, places=PLACES, padding=st.integers(0, 3), window=st.none() | st.integers(1, 5000))
def test_every_position_lies_in_one_split(lengths: list[int], places: Places, padding: int, window: int | None) -> None:
    rows = np.array([*lengths, *[0] * padding], np.int32)
    num_shares = count_shares(places.resident, places.kv_heads)
    splits = cut_rows(rows, places.block_n, num_shares, places.min_split // places.block_n, window)
    assert (np.diff(splits.shares) >= 0).all()
    assert set(splits.shares.tolist()) == set(range(int(splits.shares[-1]) + 1))
    assert splits.shares[-1] < num_shares
    assert len(splits.rows) < len(rows) + num_shares
    first = np.zeros_like(rows) if window is None else np.maximum(rows - window, 0) // places.block_n * places.block_n
    for row, length in enumerate(rows.tolist()):
        starts, ends = splits.starts[splits.rows == row], splits.ends[splits.rows == row]
        assert starts[0] == first[row]
        assert ends[-1] == length
        assert (starts[1:] == ends[:-1]).all()
        assert (starts % places.block_n == 0).all()
        assert (ends > starts).all() or length == 0
    # What the merge relies on: of a share's splits only the first and the last are parts of a row.
    whole = (splits.starts == first[splits.rows]) & (splits.ends == rows[splits.rows])
    same_share = splits.shares[1:] == splits.shares[:-1]
    inner = np.r_[False, same_share] & np.r_[same_share, False]
    assert whole[inner].all()


@given(lengths=LENGTHS, places=PLACES)
def test_no_batch_takes_much_longer_than_with_equal_splits(lengths: list[int], places: Places) -> None:
    """The bound follows from the rule: a share is longer than the average by rounding, and by the start of one row."""
    rows = np.array(lengths, np.int32)
    after, before = (makespan(rule(rows, places).tolist(), places.resident) for rule in (by_shares, by_equal_splits))
    num_shares = count_shares(places.resident, places.kv_heads)
    waves = -(-num_shares * places.kv_heads // places.resident)
    filled = num_shares * places.kv_heads / (waves * places.resident)
    assert after <= before / filled + waves * (1 + ROW_TILES)


@given(places=PLACES)
def test_waves_are_full(places: Places) -> None:
    programs = count_shares(places.resident, places.kv_heads) * places.kv_heads
    last_wave = -programs % places.resident
    if places.kv_heads <= places.resident:
        assert last_wave < places.kv_heads
        assert programs >= 0.85 * (programs + last_wave)


def test_one_position_more_changes_little() -> None:
    """Shares grow with the batch, and no step of them leaves a wave."""
    places = replace(Places(), kv_heads=1)
    for length in range(100_000, 100_640, 64):
        assert packing(np.full(7, length, np.int32), places) > 0.9
