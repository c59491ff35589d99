"""The regular work of an API process: the log says once a burst that requests are refused."""

import pytest

from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.upkeep import shed_reports
from tests.client.fake_core import MODEL


def test_requests_that_found_the_queue_full_are_told_and_those_beyond_a_limit_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics("tiny", MODEL)
    look = shed_reports(metrics)
    metrics.rejected |= {"requests": 9}
    look()
    assert not caplog.messages
    metrics.rejected |= {"max_num_queued_reqs": 2, "max_num_queued_tokens": 1}
    look()
    look()
    assert caplog.messages == ["the queue is full: requests are refused with a 503"]
