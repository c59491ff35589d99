"""What headers say is taken if it is sane, ignored where a standard wants that, and refused by name otherwise."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.observability.trace_context import TraceContext
from pyllm.frontend.requests.request_headers import RequestHeaders

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def head(**headers: str | bytes) -> RequestHeaders:
    return RequestHeaders([
        (name.replace("_", "-").encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    ])  # fmt: skip


@pytest.mark.parametrize("name", ["abc", "a" * 128, "!#~", "018f-4e"])
def test_a_sane_request_id_is_taken(name: str) -> None:
    assert head(x_request_id=name).request_id == name


@pytest.mark.parametrize("name", ["", " ", "a b", "a" * 129, "a\tb", "ä", "a\r\nb", "\x7f"])
def test_another_is_not(name: str) -> None:
    assert head(x_request_id=name).request_id is None


def test_what_repeats_a_request_is_taken_as_it_came() -> None:
    read = head(idempotency_key=b"\xff", last_event_id="a.1.1.2")
    assert (read.idempotency_key, read.last_event_id) == (b"\xff", b"a.1.1.2")
    assert (head().idempotency_key, head().last_event_id) == (None, b"")
    for asking in ({"idempotency_key": ""}, {"last_event_id": ""}, {"accept": "text/html, text/event-stream"}):
        assert head(**asking).wants_event_ids
    assert not head(accept="application/json").wants_event_ids


def test_keys_come_in_two_headers() -> None:
    assert head(authorization="Bearer abc").key == b"abc"
    assert head(authorization="bearer  abc ").key == b"abc"
    assert head(x_api_key="abc").key == b"abc"
    assert head(authorization="Bearer abc", x_api_key="def").key == b"abc"
    assert head(authorization="Basic abc").key is None
    assert head().key is None


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("0.5", 0.5), (" 2 ", 2.0), (".5", 0.5)])
def test_seconds(text: str, seconds: float) -> None:
    assert head(x_request_timeout=text).timeout == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e3", "ten", "1s", "0.0", "9" * 50])
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        _ = head(x_request_timeout=text).timeout
    assert refused.value.parameter == "x-request-timeout"


@pytest.mark.parametrize("name", ["host", "origin"])
def test_two_names_of_the_server_or_the_page_are_refused(name: str) -> None:
    for value in (b"b", b"a"):
        with pytest.raises(RequestError, match=f"header {name.title()} more than once") as refused:
            RequestHeaders([(name.encode(), b"a"), (b"accept", b"x"), (name.encode(), value)]).check_single()
        assert refused.value.parameter == name
    RequestHeaders([(b"host", b"a"), (b"origin", b"a"), (b"accept", b"x"), (b"accept", b"y")]).check_single()


def test_no_time_is_none() -> None:
    assert head().timeout is None


def test_a_tenant() -> None:
    assert head(x_llm_d_inference_fairness_id="team a").tenant == "team a"
    assert head().tenant == ""
    for bad in ("x" * 257, "a\x01b"):
        with pytest.raises(RequestError, match="x-llm-d-inference-fairness-id"):
            _ = head(x_llm_d_inference_fairness_id=bad).tenant


def test_a_session() -> None:
    assert head(x_session_id=" of a router ").session == "of a router"
    assert head().session == ""


def test_the_core_that_a_request_asks_for() -> None:
    assert head(x_data_parallel_rank="1").data_parallel_rank == 1
    assert head().data_parallel_rank is None
    for bad in ("one", "-1", "1.5", "9" * 10):
        with pytest.raises(RequestError, match="x-data-parallel-rank must be the index of a core"):
            _ = head(x_data_parallel_rank=bad).data_parallel_rank


def test_the_callers_span() -> None:
    trace = head(traceparent=PARENT, tracestate="a=1,b=2").trace
    assert trace == TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "a=1,b=2")
    assert trace.flags == 1
    assert head(tracestate="a=1").trace is None
    longer = head(traceparent=PARENT.replace("00-", "01-", 1) + "-more").trace
    assert longer is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT + "-more",
        PARENT[:-1],
        PARENT.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_what_is_no_span_is_ignored(text: str) -> None:
    assert head(traceparent=text).trace is None


@given(st.lists(st.tuples(st.sampled_from([b"x-request-id", b"traceparent", b"authorization", b"content-length",
    b"x-llm-d-inference-fairness-id", b"x-request-timeout", b"origin"]), st.binary(max_size=300))))  # fmt: skip
def test_hostile_headers_are_refused_or_harmless(headers: list[tuple[bytes, bytes]]) -> None:
    read = RequestHeaders(headers)
    assert read.request_id is None or read.request_id.isascii()
    assert (read.trace, read.key, read.content_length) is not None
    with contextlib.suppress(RequestError):
        assert read.tenant.isprintable()
    with contextlib.suppress(RequestError):
        assert read.timeout is None or read.timeout > 0
