"""A trace of a core's last steps, in memory that outlives it.

The core writes, and its parent reads after the core's death, even in the middle of a write. Knows neither of the two.
"""

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Any, NamedTuple

NUM_STEPS = 64  # steps to keep
# Rows to keep of a step: the first ones.
MAX_ROWS = 1024
_HEAD = struct.Struct("=QQ")  # the epoch, and the number of steps that are over
_HEAD_SIZE = 64
# The format of `rust/pyllm-python/src/step_trace.rs`, in words of 32 bits: checksum, step, tokens, rows; each row.
_NOTE = struct.Struct("=QQII")
_ROW = struct.Struct("=IQ")


class StepTrace:
    """The core's side, over `size(...)` zero bytes."""

    def __init__(self, memory: mmap | bytearray, epoch: int) -> None:
        view = memoryview(memory)
        self._head = view[:_HEAD_SIZE].cast("Q")
        self._head[0] = epoch
        words = view[_HEAD_SIZE:].cast("I")
        length = len(words) // NUM_STEPS
        self._notes = [words[index * length : (index + 1) * length] for index in range(NUM_STEPS)]

    def note(self, step: int) -> memoryview:
        """The buffer for the note of a step, which `Scheduler.note_step` writes before the step is submitted."""
        return self._notes[step % NUM_STEPS]

    def end(self, step: int) -> None:
        """Note that a step and all before it are over: committed, or lost with the workers."""
        self._head[1] = step + 1


class _Note(NamedTuple):
    step: int
    num_tokens: int
    num_rows: int
    requests: list[dict[str, int]]  # without duplicates


def size(max_num_seqs: int) -> int:
    """The number of bytes for a core with at most `max_num_seqs` rows in a step."""
    note = _NOTE.size + min(max_num_seqs, MAX_ROWS) * _ROW.size
    return _HEAD_SIZE + NUM_STEPS * note


def last_steps(memory: bytes) -> dict[str, Any]:
    """The notes of a core that has ended, under the names of a worker's record; empty if it had not begun."""
    if not any(memory[:_HEAD_SIZE]):
        return {}
    epoch, num_over = _HEAD.unpack_from(memory)
    length = (len(memory) - _HEAD_SIZE) // NUM_STEPS
    starts = range(_HEAD_SIZE, _HEAD_SIZE + NUM_STEPS * length, length)
    notes = [note for start in starts for note in _read(memory[start : start + length])]
    notes.sort(key=lambda note: note.step)
    in_flight = [note for note in notes if note.step >= num_over]
    return {
        "epoch": epoch,
        "steps_in_flight": [note.step for note in in_flight],
        "suspects": _each_once(request for note in in_flight for request in note.requests),
        "steps": [note._asdict() for note in notes],
    }


def _read(memory: bytes) -> Iterator[_Note]:
    """The note in the buffer, if it was completely written."""
    checksum, step, num_tokens, num_rows = _NOTE.unpack_from(memory)
    num_kept = min(num_rows, (len(memory) - _NOTE.size) // _ROW.size)
    rows = memory[_NOTE.size : _NOTE.size + num_kept * _ROW.size]
    if checksum == _checksum(rows + memory[8 : _NOTE.size]):
        requests = ({"client": client, "request": request} for client, request in _ROW.iter_unpack(rows))
        yield _Note(step, num_tokens, num_rows, _each_once(requests))


def _checksum(content: bytes) -> int:
    """FNV-1a over 32-bit words in place of bytes."""
    total = 0xCBF29CE484222325
    for word in memoryview(content).cast("I"):
        total = (total ^ word) * 0x100000001B3 % (1 << 64)
    return total


def _each_once(requests: Iterator[dict[str, int]]) -> list[dict[str, int]]:
    return list({(each["client"], each["request"]): each for each in requests}.values())
