from array import array

from pyllm.frontend.shared.totals import Totals


def row(*numbers: float) -> bytes:
    return array("d", numbers).tobytes()


def test_what_a_process_counted_outlives_it() -> None:
    totals = Totals()
    assert totals.sum() == b""
    totals.count(1, row(1, 2))
    totals.count(2, row(10, 20))
    totals.count(1, row(3, 4))
    assert totals.sum() == row(13, 24)
    totals.drop(1)
    totals.drop(7)
    assert totals.sum() == row(13, 24)
    totals.count(3, row(1, 1))
    assert totals.sum() == row(14, 25)
