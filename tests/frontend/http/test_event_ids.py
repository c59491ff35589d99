"""An id says where a stream is and of which model and request, and only the same ones take it up."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.http.event_ids import ChoicePosition, Piece, Position, StreamIdentity, model_hash
from pyllm.frontend.http.failure import ResumeConflictError
from pyllm.parameters.sampling_params import SamplingParams

hashes = st.text("0123456789abcdef", min_size=12, max_size=12)
identities = st.builds(StreamIdentity, hashes, hashes)
counts = st.integers(0, 99_999_999)
pieces = st.builds(Piece, counts, st.booleans(), st.integers(0, 9999))
unended = st.builds(ChoicePosition, counts, st.just(False), st.none() | pieces)
ended = st.builds(ChoicePosition, counts, st.just(True))
requests = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128)
prompts = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=3)
parameters = st.builds(
    SamplingParams,
    n=st.integers(1, 3),
    temperature=st.sampled_from((0.0, 0.5, 1.0)),
    max_tokens=st.none() | st.integers(1, 3),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 9), st.sampled_from((-1.0, 1.0)), max_size=2),
)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    has_ended = draw(st.booleans())
    choices = draw(st.lists(ended if has_ended else unended | ended, min_size=1, max_size=4))
    num_end_events = draw(st.integers(1, 99)) if has_ended else 0
    created, seed = draw(st.integers(0, 2**40 - 1)), draw(st.integers(0, 2**64 - 1))
    return Position(draw(requests), created, seed, tuple(choices), num_end_events, draw(identities))


@given(positions())
def test_an_id_is_read_as_it_was_written(position: Position) -> None:
    assert Position.parse(position.format()) == position


@given(requests, st.integers(0, 2**40 - 1), st.integers(0, 2**64 - 1))
def test_the_beginning_of_a_stream_names_no_model(request_id: str, created: int, seed: int) -> None:
    start = Position(request_id, created, seed)
    assert Position.parse(start.format()) == start


@given(positions())
@example(Position("a.1.1", 1, 0xFFF, (ChoicePosition(2),), 0, StreamIdentity("0" * 12, "0" * 12)))
def test_an_id_without_its_model_is_none(position: Position) -> None:
    text = position.format()
    identity = f".{text.rsplit('.', 2)[1]}"
    for other in (text.replace(identity, ""), text.replace(identity, ".")):
        with pytest.raises(RequestError, match="is not the id"):
            Position.parse(other)


@given(st.text(), st.text(), prompts, prompts, parameters, parameters)
def test_a_stream_goes_on_with_the_same_model_and_request_alone(
    one: str,
    other: str,
    prompt: list[list[int]],
    another: list[list[int]],
    first: SamplingParams,
    second: SamplingParams,
) -> None:
    identity = StreamIdentity.of(one, prompt, first)
    StreamIdentity.of(one, tuple(map(tuple, prompt)), first).check_resumes(identity)
    assert identity.model == model_hash(one)
    for resumed, is_same, text in (
        (StreamIdentity.of(other, prompt, first), one == other, "of the model"),
        (StreamIdentity.of(one, another, first), prompt == another, "another prompt"),
        (StreamIdentity.of(one, prompt, second), first == second, "other parameters"),
    ):
        if is_same:
            resumed.check_resumes(identity)
        else:
            with pytest.raises(ResumeConflictError, match=text):
                resumed.check_resumes(identity)


def test_prompts_are_told_apart_by_where_they_end() -> None:
    one, other = ([[1, 2], [3]], [[1], [2, 3]])
    params = SamplingParams()
    assert StreamIdentity.of("a", one, params) != StreamIdentity.of("a", other, params)


def test_the_seed_is_not_of_the_identity() -> None:
    seeded, unseeded = (StreamIdentity.of("a", [[1]], SamplingParams(seed=seed)) for seed in (7, None))
    assert seeded == unseeded
