"""Records of answers: who runs, who reads, what is kept and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.shared.idempotency_records import READER_ABSENCE, Records, last_event_id
from pyllm.frontend.shared.messages import Attached, Conflict, Full, Run

HEADERS = ((b"content-type", b"text/event-stream"),)
RETENTION = 600.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def claim(records: Records, owner: int = 1, key: str = "key", digest: bytes = b"d", tenant: str = "") -> Run | Attached:
    answer = records.claim(owner, tenant, key, digest, "origin")
    assert isinstance(answer, Run | Attached)
    return answer


def run(records: Records, body: bytes = b"", *, finished: bool = False, **claimed: object) -> Run:
    answer = claim(records, **claimed)  # type: ignore[arg-type]  # the options of `claim`
    assert isinstance(answer, Run)
    records.start(answer.run, 200, HEADERS)
    records.append(answer.run, body)
    if finished:
        records.finish(answer.run, keep=True)
    return answer


def test_the_first_runs_and_the_others_read() -> None:
    records = Records(RETENTION)
    first = run(records, b"a")
    assert first.position == "origin"
    second = claim(records, owner=2)
    assert second == Attached(first.record)
    assert records.claim(1, "", "key", b"other", "origin") == Conflict()
    assert isinstance(claim(records, tenant="acme"), Run)
    page = records.read(second.record, 0)
    assert page is not None
    assert (page.status, page.headers, page.body, page.is_over) == (200, HEADERS, b"a", False)
    assert records.read(second.record, 1) is None
    changes: list[int] = []
    records.wait(second.record, lambda: changes.append(1))
    records.append(first.run, b"b")
    records.append(first.run, b"c")
    assert changes == [1]
    records.finish(first.run, keep=True)
    page = records.read(second.record, 1)
    assert page is not None
    assert (page.body, page.is_over) == (b"bc", True)
    assert claim(records) == Attached(first.record)


def test_what_is_over_is_kept_for_its_time() -> None:
    clock = Clock()
    records = Records(RETENTION, clock)
    done = run(records, b"a", finished=True)
    records.leave(1, done.record)
    clock.now = RETENTION - 1
    records.sweep()
    assert claim(records) == Attached(done.record)
    records.leave(1, done.record)
    clock.now += RETENTION
    records.sweep()
    assert (len(records), records.num_bytes) == (0, 0)
    assert isinstance(claim(records), Run)


def test_an_error_is_read_by_those_who_wait_and_forgotten() -> None:
    records = Records(RETENTION)
    failed = run(records, b"no")
    claim(records, owner=2)
    records.finish(failed.run, keep=False)
    assert isinstance(claim(records), Run)  # a new one
    records.leave(1, failed.record)
    page = records.read(failed.record, 0)
    assert page is not None
    assert (page.body, page.is_over) == (b"no", True)
    records.leave(2, failed.record)
    page = records.read(failed.record, 0)
    assert page is not None
    assert page.is_lost


def test_a_run_without_readers_goes_on_for_a_while() -> None:
    clock = Clock()
    records = Records(RETENTION, clock)
    answer = run(records, b"a")
    ended: list[int] = []
    records.wait_abandoned(answer.run, lambda: ended.append(1))
    clock.now = 1000.0
    records.sweep()  # it has a reader
    records.leave(1, answer.record)
    clock.now += READER_ABSENCE - 1
    records.sweep()
    assert claim(records) == Attached(answer.record)
    records.leave(1, answer.record)
    clock.now += READER_ABSENCE - 1
    records.sweep()
    assert ended == []
    clock.now += 1
    records.sweep()
    assert (ended, len(records)) == ([1], 0)
    records.append(answer.run, b"late")
    records.finish(answer.run, keep=True)
    assert (len(records), records.num_bytes) == (0, 0)


def test_what_a_lost_process_ran_is_taken_over_once_where_it_broke_off() -> None:
    records = Records(RETENTION)
    first = run(records, b"id: x.1\ndata: a\n\nid: x.2\ndata: b\n\n: keep-alive\n\n")
    claim(records, owner=2)
    claim(records, owner=3)
    records.drop(1)
    page = records.read(first.record, 0)
    assert page is not None
    assert page.is_orphaned
    second = records.take_over(2, first.record)
    assert isinstance(second, Run)
    assert (second.record, second.position) == (first.record, "x.2")
    assert records.take_over(3, first.record) == Attached(first.record)
    records.start(second.run, 200, ())
    records.append(second.run, b"id: x.3\ndata: c\n\n")
    records.append(first.run, b"nobody")  # the dead speak no more
    records.finish(second.run, keep=True)
    page = records.read(first.record, 0)
    assert page is not None
    assert (page.headers, page.body.count(b"data"), page.is_over) == (HEADERS, 3, True)
    assert records.find(first.record, b"x.1") == len(b"id: x.1\ndata: a\n\n")
    assert records.find(first.record, b"x.3") == len(page.body)
    assert records.find(first.record, b"x") == -1


@pytest.mark.parametrize(("body", "is_lost"), [(b"", False), (b"data: a\n\n", True)])
def test_what_a_lost_process_left_without_ids_begins_anew_or_is_lost(body: bytes, is_lost: bool) -> None:
    records = Records(RETENTION)
    answer = claim(records)
    assert isinstance(answer, Run)
    if body:
        records.start(answer.run, 200, HEADERS)
        records.append(answer.run, body)
    claim(records, owner=2)
    records.drop(1)
    page = records.read(answer.record, 0)
    assert page is not None
    assert (page.is_lost, page.is_orphaned) == (is_lost, not is_lost)
    again = claim(records, owner=2)
    assert isinstance(again, Run)
    assert (again.position, again.record == answer.record) == ("origin", not is_lost)


def test_what_has_no_room_is_run_again_the_same() -> None:
    records = Records(RETENTION, max_bytes=10, max_record_bytes=8)
    one = run(records, b"123456", key="one", finished=True)
    run(records, b"123456", key="two", finished=True)
    assert records.num_bytes == 6
    again = claim(records, key="one")
    assert isinstance(again, Run)
    assert (again.record != one.record, again.position) == (True, "origin")
    long = run(records, b"123456789", key="long")
    page = records.read(long.record, 0)
    assert page is not None
    assert page.is_lost
    assert isinstance(claim(records, key="long"), Run)


def test_a_record_that_lost_its_bytes_keeps_its_key_and_its_seed() -> None:
    records = Records(RETENTION, max_bytes=10)
    lost = run(records, b"123456", key="one", finished=True)
    run(records, b"123456", key="two", finished=True)
    assert records.claim(1, "", "one", b"other", "origin") == Conflict()
    again = records.claim(1, "", "one", b"d", "another origin")
    assert isinstance(again, Run)
    assert (again.record != lost.record, again.position) == (True, "origin")
    assert len(records) == 2


def test_there_are_so_many_records_at_most() -> None:
    records = Records(RETENTION, max_records=2)
    run(records, key="one")
    two = run(records, key="two", finished=True)
    records.leave(1, two.record)
    claim(records, key="three")
    assert records.claim(1, "", "four", b"d", "origin") == Full()
    assert len(records) == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["claim", "append", "finish", "drop", "leave"]))))
def test_bytes_are_counted_and_a_key_runs_at_most_once(calls: list[tuple[str, str]]) -> None:
    clock = Clock()
    records = Records(RETENTION, clock, max_bytes=20, max_record_bytes=12)
    runs: dict[str, int] = {}
    readings: list[int] = []
    for key, call in calls:
        match call:
            case "claim":
                answer = claim(records, key=key)
                readings.append(answer.record)
                if isinstance(answer, Run):
                    runs[key] = answer.run
            case "append":
                records.append(runs.get(key, 0), b"12345")
            case "finish":
                records.finish(runs.get(key, 0), keep=key != "c")
            case "drop":
                records.drop(1)
                readings.clear()
            case "leave" if readings:
                records.leave(1, readings.pop())
        assert 0 <= records.num_bytes <= 20
        running = [record for record in records._by_number.values() if record.is_running]
        assert len({record.key for record in running}) == len(running)
        assert records.num_bytes == sum(len(record.body) for record in records._by_number.values())
    records.drop(1)
    clock.now = RETENTION + READER_ABSENCE
    records.sweep()
    assert (len(records), records.num_bytes) == (0, 0)


def test_the_last_id_is_that_of_the_last_event_with_one() -> None:
    assert last_event_id(b"data: id: x\n\n") is None
    assert last_event_id(b"id: a\ndata: x\n\n") == "a"
    assert last_event_id(b"data: y\n\nid: b\ndata: x\n\ndata: z\n\n") == "b"


def test_in_less_room_only_what_is_over_and_unread_is_let_go_of() -> None:
    """And what grows meanwhile goes on to."""
    records = Records(RETENTION, max_bytes=100, max_record_bytes=100)
    over = run(records, b"12345678", finished=True, key="over")
    read = run(records, b"12345678", finished=True, key="read")
    running = run(records, b"1234", key="running")
    records.leave(1, over.record)
    records.resize(0.05)
    records.append(running.run, b"5678")
    pages = [records.read(each.record, 0) for each in (read, running)]
    assert [page.body for page in pages if page is not None] == [b"12345678"] * 2
    assert records.num_bytes == 16
    assert isinstance(claim(records, key="over"), Run)  # It is run again, the same.
    records.leave(1, read.record)
    records.sweep()
    assert records.num_bytes == 8
    records.resize(1.0)
    records.finish(running.run, keep=True)
    records.leave(1, running.record)
    records.sweep()
    assert records.num_bytes == 8
