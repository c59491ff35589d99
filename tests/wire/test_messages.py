import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.wire.messages import Abort, ClientMessage, CoreMessage, Deltas, Hello, Output, Rejected, Sampling, Submit
from pyllm.wire.plan_layout import PLAN_ALIGNMENT, PLAN_SECTIONS, plan_offsets


def test_submit_survives_the_wire() -> None:
    submit = Submit(
        epoch=1,
        request=2**64 - 1,
        prompt=b"\x01\x00\x00\x00",
        seed=2**63,
        max_tokens=5,
        sampling=Sampling(0.5, 3, 0.9, 0.1),
        n=2,
        outputs=(Output(b"\x02\x00\x00\x00", False), Output(b"", True)),
        cache_salt="salt",
        kv_cache_retention="long",
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=ClientMessage) == submit


def test_unknown_trailing_fields_of_a_newer_peer_are_ignored() -> None:
    newer = msgspec.msgpack.encode(["Abort", 1, 2, 3, "a field of the future"])
    assert msgspec.msgpack.decode(newer, type=ClientMessage) == Abort(1, 2, 3)


@pytest.mark.parametrize("message", [Deltas(1, b"", b"", b"", b"", b"", b"", b""), Rejected(None, "code", "text")])
def test_a_client_cannot_send_what_only_a_core_says(message: CoreMessage) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ClientMessage)


@given(st.binary(max_size=64))
def test_random_bytes_never_raise_anything_but_decode_errors(data: bytes) -> None:
    try:
        message = msgspec.msgpack.decode(data, type=ClientMessage)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert isinstance(message, ClientMessage)


@given(st.lists(st.integers(0, 5000), min_size=len(PLAN_SECTIONS), max_size=len(PLAN_SECTIONS)))
def test_plan_sections_are_aligned_and_do_not_overlap(counts: list[int]) -> None:
    *offsets, size = plan_offsets(tuple(counts))
    end = 0
    for offset, count, (_, element) in zip(offsets, counts, PLAN_SECTIONS, strict=True):
        assert offset % PLAN_ALIGNMENT == 0
        assert end <= offset < end + PLAN_ALIGNMENT
        end = offset + count * (1 if element == "B" else 4)
    assert size == end


def test_hello_is_small() -> None:
    assert len(msgspec.msgpack.encode(Hello(1))) == 9
