"""Counters of all API processes together, so that whichever is asked for metrics tells of all. Knows no names."""

from array import array


class Totals:
    """Sums of equally long rows of numbers, one row for each API process; what a process counted outlives it."""

    def __init__(self) -> None:
        self._rows: dict[int, array[float]] = {}
        self._gone = array("d")

    def count(self, member: int, row: bytes) -> None:
        """Replace what a process has counted so far: packed float64."""
        self._rows[member] = array("d", row)

    def sum(self) -> bytes:
        """The sums, packed likewise."""
        total = array("d", self._gone)
        for row in self._rows.values():
            total = _added(total, row)
        return total.tobytes()

    def drop(self, member: int) -> None:
        """A process is gone; its numbers stay."""
        if (row := self._rows.pop(member, None)) is not None:
            self._gone = _added(self._gone, row)


def _added(one: "array[float]", other: "array[float]") -> "array[float]":
    if not one or not other:
        return one or other
    return array("d", [left + right for left, right in zip(one, other, strict=True)])
