from pathlib import Path

import pytest

from pyllm.kv_transfer.stores.block_index import BlockIndex
from pyllm.kv_transfer.stores.block_record import DEAD, HEADER_BYTES, checksum, new_header, read_header
from pyllm.kv_transfer.stores.file_layer import SystemFiles
from pyllm.kv_transfer.stores.segment import Place, Segment

MAX_BYTES = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "segment"


def new_segment(path: Path) -> Segment:
    files = SystemFiles()
    return Segment(files, path, files.open(path, is_new=not path.exists()), 1, MAX_BYTES)


def append(segment: Segment, key: bytes, value: bytes = b"v" * 60) -> Place:
    block = memoryview(value)
    return segment.append(new_header(key, len(block), checksum(block), "default"), block)


def test_a_second_reader_finds_what_is_appended(path: Path) -> None:
    writer, reader = new_segment(path), new_segment(path)
    assert reader.scan() == []
    first = append(writer, b"first")
    assert reader.scan() == [first]
    second = append(writer, b"second", b"another")
    assert reader.scan() == [second]
    into = memoryview(bytearray(7))
    header = reader.read(second, into)
    assert header is not None
    assert (bytes(into), header.checksum) == (b"another", checksum(into))


def test_a_place_that_is_out_of_date_is_not_read(path: Path) -> None:
    """Another process may have cut the segment and gone on."""
    segment = new_segment(path)
    old = append(segment, b"old")
    segment.end = 0
    assert append(segment, b"new").offset == old.offset
    assert segment.read(old, memoryview(bytearray(60))) is None


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_sealed_segment_lists_its_blocks(path: Path, is_whole: bool) -> None:
    segment = new_segment(path)
    first, second = append(segment, b"first"), append(segment, b"second")
    segment.seal([first, second])
    with path.open("r+b") as file:
        if is_whole:  # Then the headers are not walked.
            file.write(b"?")
        else:  # Then they are.
            file.seek(-1, 2)
            file.write(b"?")
    reader = new_segment(path)
    assert reader.scan() == [first, second]
    assert reader.is_sealed == is_whole
    assert reader.end == second.end


def test_a_torn_record_ends_the_walk_until_it_is_whole(path: Path) -> None:
    segment = new_segment(path)
    first = append(segment, b"first")
    last = append(segment, b"last")
    whole = path.read_bytes()
    reader = new_segment(path)
    for size in range(first.end, last.end):
        path.write_bytes(whole[:size])
        assert reader.scan() in ([first], [])
        assert reader.end == first.end
    path.write_bytes(whole)
    assert reader.scan() == [last]


def test_what_is_behind_the_last_record_is_cut_before_the_list(path: Path) -> None:
    append(new_segment(path), b"first")
    with path.open("ab") as file:
        file.write(b"torn" * 50)
    segment = new_segment(path)
    places = segment.scan(from_start=True)
    segment.truncate()
    segment.seal(places)
    reader = new_segment(path)
    assert reader.scan() == places
    assert reader.is_sealed


def test_a_dead_block_is_not_found(path: Path) -> None:
    segment = new_segment(path)
    place = append(segment, b"first")
    segment.mark(place, DEAD)
    assert new_segment(path).scan() == []


def test_it_never_takes_more_than_it_may(path: Path) -> None:
    segment = new_segment(path)
    places = []
    while segment.has_room(new_header(b"key", 60, b"", "default")):
        places.append(append(segment, b"key"))
    assert len(places) > 3
    segment.seal(places)
    assert path.stat().st_size <= MAX_BYTES


def test_free_runs_are_what_lies_between_blocks(path: Path) -> None:
    segment = new_segment(path)
    places = [append(segment, b"%d" % number) for number in range(5)]
    index = BlockIndex(SystemFiles())
    index.enter(segment, places)
    assert segment.free_runs() == []
    size = places[0].num_bytes
    for place in (places[0], places[2], places[3]):
        index.forget(segment, place)
    assert segment.free_runs() == [size, 2 * size]
    index.enter(segment, [], replaces=True)
    assert segment.free_runs() == [5 * size]


def test_a_second_removal_closes_no_other_file(path: Path) -> None:
    segment = new_segment(path)
    index = BlockIndex(SystemFiles())
    number = segment.fd
    index.remove(segment)
    other = new_segment(path)
    assert other.fd == number
    index.remove(segment)
    assert other.scan() == []


@pytest.mark.parametrize("position", range(HEADER_BYTES + 3))
def test_each_byte_of_a_header_but_its_state_is_checked(position: int) -> None:
    header = new_header(b"key", 60, checksum(memoryview(b"value")), "long")
    data = bytearray(header.pack())
    assert read_header(memoryview(data)) == header
    data[position] ^= 1
    read = read_header(memoryview(data))
    assert read is None or read == header._replace(state=1)
    assert (read is None) == (position != 4)
