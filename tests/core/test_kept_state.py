"""What a core leaves to the next one: it is said before a client is answered, and in effect from the next start on."""

import pytest

from pyllm.wire.messages import Abort
from pyllm.wire.supervision_messages import MAX_ENDED, Kept
from tests.core.raw_engine import EPOCH, Engine


class Parent:
    """Keeps what cores say, as the supervisor of a core does; `cores` are followed by `next_core`."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []

    @property
    def ended(self) -> list[str]:
        """The names of what has ended, oldest first."""
        return [report["name"] for kept in self.kept for report in kept.ended]

    def next_core(self, **options: object) -> Engine:
        """A core that has what the ones before have left."""
        settings = [kept.settings for kept in self.kept if kept.settings is not None]
        ended = [report for kept in self.kept for report in kept.ended]
        earlier = Kept(settings[-1] if settings else {}, tuple(ended[-MAX_ENDED:]))
        return Engine(earlier=earlier, keep=self.kept.append, **options)


async def test_settings_outlive_the_core_that_was_given_them() -> None:
    parent = Parent()
    first = parent.next_core()
    assert parent.kept == []
    first.call("reconfigure", {"watermark": 0.25, "max_num_batched_tokens": 8})
    first.call("reconfigure", {"watermark": 0.5, "scheduling_policy": "priority"})
    assert not first.call("reconfigure", {"watermark": 7}).ok
    first.call("reconfigure", {})
    assert len(parent.kept) == 2
    effective = first.call("reconfigure", {}).value
    second = parent.next_core()
    assert second.call("reconfigure", {}).value == effective
    # The memory of the workers is that of the start.
    assert second.call("reconfigure", {"max_num_batched_tokens": 16}).ok
    third = parent.next_core().call("reconfigure", {}).value
    assert third == effective | {"max_num_batched_tokens": 16}


async def test_a_level_that_was_set_is_set_again() -> None:
    parent, levels = Parent(), list[str]()
    parent.next_core(set_log_level=levels.append).call("reconfigure", {"log_level": "DEBUG"})
    parent.next_core(set_log_level=levels.append)
    assert levels == ["DEBUG", "DEBUG"]


async def test_settings_that_are_possible_no_more_do_not_keep_a_core_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(earlier=Kept({"scheduling_policy": "that is not installed any more", "watermark": 0.5}))
    assert engine.call("reconfigure", {}).value["watermark"] == 0
    assert "are not in effect" in caplog.text
    engine.submit(1, [5])
    await engine.run_dry()


async def test_requests_that_ended_outlive_the_core() -> None:
    parent = Parent()
    first = parent.next_core()
    first.submit(1, [1, 5], max_tokens=2, name="a", tenant="acme")
    first.submit(2, [2, 5], max_tokens=9, name="b")
    await first.core.step()
    assert parent.ended == []
    await first.core.step()
    assert parent.ended == ["a"]
    first.receive(Abort(EPOCH, 2))
    assert parent.ended == ["a", "b"]  # without a step, or a beat
    second = parent.next_core()
    second.now = 10.0
    second.submit(1, [3, 5], max_tokens=1, name="c", age=1.0)
    await second.run_dry()
    assert parent.ended == ["a", "b", "c"]
    second.submit(2, [3, 5], name="d")
    reports = second.call("requests").value
    assert [report["name"] for report in reports] == ["d", "c", "b", "a"]
    assert [report["finish"] for report in reports] == [None, "length", "abort", "length"]
    assert (reports[3]["tenant"], reports[3]["ended_age"], reports[3]["age"]) == ("acme", 10.0, 10.0)
    assert second.call("requests").value == reports
    assert [report["name"] for report in second.call("requests", 3).value] == ["d", "c", "b"]
    assert [report["name"] for report in second.call("requests", 9, "a").value] == ["a"]


async def test_a_thousand_of_all_cores_are_reported() -> None:
    parent = Parent()
    first = parent.next_core()
    for request in range(MAX_ENDED):
        first.submit(request, [1], name=f"first {request}")
        first.receive(Abort(EPOCH, request))
    second = parent.next_core()
    for request in range(3):
        second.submit(request, [1], name=f"second {request}")
        second.receive(Abort(EPOCH, request))
    names = [report["name"] for report in second.call("requests").value]
    assert len(names) == MAX_ENDED
    assert names[:4] == ["second 2", "second 1", "second 0", "first 999"]
    assert names[-1] == "first 3"
