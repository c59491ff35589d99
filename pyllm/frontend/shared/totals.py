"""Sums of the counters of all API processes, so that each of them can answer for all. Knows no counter's meaning."""

from array import array

import msgspec


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The counts of one process: numbers in an order that all agree on, packed float64, and counts by name.

    `grouped` are several numbers by name.
    """

    numbers: bytes = b""
    named: dict[str, int] = {}
    grouped: dict[str, list[float]] = {}


NOTHING = Row()

encode_row = msgspec.msgpack.Encoder().encode
decode_row = msgspec.msgpack.Decoder(Row).decode


class Totals:
    """Sums of the counts of API processes, dead ones included."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._gone = NOTHING

    def count(self, member: int, row: bytes) -> None:
        """Replace the counts of a process by an encoded `Row`."""
        self._rows[member] = decode_row(row)

    def sum(self) -> bytes:
        """The sums, as an encoded `Row`."""
        total = self._gone
        for row in self._rows.values():
            total = _added(total, row)
        return encode_row(total)

    def drop(self, member: int) -> None:
        """Keep the final counts of a process that is gone."""
        if (row := self._rows.pop(member, None)) is not None:
            self._gone = _added(self._gone, row)


def _added(one: Row, other: Row) -> Row:
    named = dict(one.named)
    for name, count in other.named.items():
        named[name] = named.get(name, 0) + count
    grouped = dict(one.grouped)
    for name, some in other.grouped.items():
        known = grouped.get(name)
        grouped[name] = some if known is None else [left + right for left, right in zip(known, some, strict=True)]
    if not one.numbers or not other.numbers:
        return Row(one.numbers or other.numbers, named, grouped)
    numbers = zip(memoryview(one.numbers).cast("d"), memoryview(other.numbers).cast("d"), strict=True)
    return Row(array("d", [left + right for left, right in numbers]).tobytes(), named, grouped)
