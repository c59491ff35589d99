"""What waits is bounded; what can run does not count; nobody is refused for ever."""

from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.queue import QUEUE_RETRY, AdmissionQueue


def test_what_can_run_at_once_is_not_queued() -> None:
    queue = AdmissionQueue(SharedConfig(max_num_seqs=2, max_num_queued_reqs=1))
    assert [queue.enter(1) for _ in range(3)] == [None] * 3
    assert queue.num_queued == 1
    refused = queue.enter(1)
    assert refused is not None
    assert (refused.reason, refused.retry_after) == ("max_num_queued_reqs", QUEUE_RETRY)
    assert queue.enter(0) is None  # It needs no core.
    queue.started(1, 0)
    assert queue.num_queued == 1  # One runs, one place is left for two.
    queue.leave_running(1)
    assert queue.num_queued == 0
    assert queue.enter(1) is None


def test_a_request_with_many_sequences_is_taken_where_nothing_waits() -> None:
    queue = AdmissionQueue(SharedConfig(max_num_seqs=2, max_num_queued_reqs=1))
    assert queue.enter(100) is None
    assert queue.enter(1) is not None
    queue.leave_waiting(100, 0)
    assert queue.enter(1) is None


def test_prompt_tokens_that_wait() -> None:
    queue = AdmissionQueue(SharedConfig(max_num_seqs=8, max_num_queued_tokens=10))
    assert queue.charge(50) is None  # alone
    refused = queue.charge(1)
    assert refused is not None
    assert refused.reason == "max_num_queued_tokens"
    queue.enter(1)
    queue.started(1, 50)
    assert queue.charge(9) is None
    assert queue.charge(1) is None
    assert queue.charge(1) is not None
    assert queue.num_tokens == 10


def test_without_bounds_everything_waits() -> None:
    queue = AdmissionQueue(SharedConfig(max_num_seqs=1))
    assert all(queue.enter(1) is None and queue.charge(1 << 40) is None for _ in range(100))
