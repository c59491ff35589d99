from array import array

from pyllm.frontend.shared.totals import NOTHING, Row, Totals, encode_row


def row(*numbers: float, **named: int) -> bytes:
    return encode_row(Row(array("d", numbers).tobytes(), named))


def test_what_a_process_counted_outlives_it() -> None:
    totals = Totals()
    assert totals.sum() == encode_row(NOTHING)
    totals.count(1, row(1, 2))
    totals.count(2, row(10, 20, x=2))
    totals.count(1, row(3, 4, x=1, y=5))
    assert totals.sum() == row(13, 24, x=3, y=5)
    totals.drop(1)
    totals.drop(7)
    assert totals.sum() == row(13, 24, x=3, y=5)
    totals.count(3, row(1, 1, z=1))
    assert totals.sum() == row(14, 25, x=3, y=5, z=1)


def test_adding_changes_no_row() -> None:
    totals = Totals()
    totals.count(1, row(1, x=1))
    totals.count(2, row(1, x=1))
    assert totals.sum() == totals.sum() == row(2, x=2)
    totals.drop(1)
    totals.count(2, row(2, x=5))
    assert totals.sum() == row(3, x=6)
