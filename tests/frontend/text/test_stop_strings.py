"""Stop strings found and held back, against the plainest way to do it: every string at every place, token by token."""

from collections.abc import Sequence
from itertools import pairwise
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.text.detokenizer import Detokenizer, TextDelta
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.parameters.sampling_params import (
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from pyllm.wire.messages import FinishCode

CHARACTERS = "abé🙂"
PIECES = st.lists(st.text(CHARACTERS, max_size=5), max_size=24)


class Pieces:
    """A text decoder of tokens that are the places of their text in a list."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in tokens)


@st.composite
def pieces_and_stops(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Texts of some tokens, and stop strings, of which some are in them."""
    pieces = draw(PIECES)
    text = "".join(pieces)
    strings = st.text(CHARACTERS, min_size=1, max_size=8)
    if text:
        start = st.integers(0, len(text) - 1)
        strings |= st.builds(lambda begin, length: text[begin : begin + length], start, st.integers(1, 8))
    return pieces, draw(st.lists(strings, max_size=12))


def found(text: str, stops: Sequence[str], num_old: int) -> tuple[int, int] | None:
    """Start and end of the first match to be complete after some characters, the longest of those."""
    matches = [
        (end, end - len(stop))
        for stop in stops
        for end in range(max(num_old + 1, len(stop)), len(text) + 1)
        if text[:end].endswith(stop)
    ]
    if not matches:
        return None
    end, start = min(matches)
    return start, end


def held(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of a text that a longer stop string begins with."""
    longest = max(map(len, stops), default=0)
    lengths = range(min(len(text), longest - 1), 0, -1)
    return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in stops)), 0)


def plain(pieces: Sequence[str], params: SamplingParams) -> TextDelta:
    """The whole output: text, tokens, and the stop string that ended it."""
    text, tokens = "", list(range(len(pieces)))
    for count, piece in enumerate(pieces, 1):
        text += piece
        if count <= params.min_tokens:
            continue
        match = found(text, params.stop_strings, len(text) - len(piece))
        if match is not None:
            start, end = match
            kept = text[: end if params.include_stop_str_in_output else start]
            return TextDelta(kept, tokens[:count], "stop", text[start:end])
    return TextDelta(text, tokens, "length")


def fed(pieces: Sequence[str], params: SamplingParams, cuts: Sequence[int]) -> tuple[TextDelta, list[str]]:
    """What a detokenizer makes of the tokens, cut into deltas: all of it, and the text so far after each."""
    detokenizer = Detokenizer(Pieces(pieces), params, StopStrings.of(params.stop_strings))
    tokens = list(range(len(pieces)))
    total, texts = TextDelta("", []), []
    for start, end in pairwise([0, *cuts, len(tokens)]):
        is_last = end == len(tokens) and len(texts) == len(cuts)
        delta = detokenizer.feed(tokens[start:end], FinishCode.LENGTH if is_last else FinishCode.NONE)
        total.merge(delta)
        texts.append(total.text)
        if delta.finish_reason is not None:
            break
    return total, texts


@given(
    case=pieces_and_stops(),
    min_tokens=st.integers(0, 6),
    include=st.booleans(),
    cuts=st.lists(st.integers(0, 24), max_size=8),
)
def test_outputs_are_those_of_the_plainest_way(
    case: tuple[list[str], list[str]], min_tokens: int, include: bool, cuts: list[int]
) -> None:
    pieces, stops = case
    cuts = sorted(min(cut, len(pieces)) for cut in cuts)
    params = SamplingParams(stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    total, texts = fed(pieces, params, cuts)
    assert total == plain(pieces, params)
    going_on = texts[:-1]
    for cut, text in zip(cuts[: len(going_on)], going_on, strict=True):
        so_far = "".join(pieces[:cut])
        assert text == so_far[: len(so_far) - held(so_far, stops)]


@given(case=pieces_and_stops(), num_old=st.integers(0, 12))
def test_a_look_at_a_text_finds_what_the_plainest_way_does(case: tuple[list[str], list[str]], num_old: int) -> None:
    pieces, stops = case
    text = "".join(pieces)
    stop_strings = StopStrings.of(tuple(stops))
    if stop_strings is None:
        assert stops == []
        return
    assert stop_strings.find(text, num_old) == found(text, stops, num_old)
    assert stop_strings.num_held(text) == held(text, stops)
    if not stop_strings.may_begin_in(text):
        assert found(text, stops, 0) is None
        assert held(text, stops) == 0


def test_the_most_that_a_request_may_have() -> None:
    length = MAX_STOP_CHARACTERS // MAX_STOP_STRINGS
    many = SamplingParams(stop=[f"{number:04}".ljust(length, "x") for number in range(MAX_STOP_STRINGS)])
    pieces = ["say ", "05", "1", "1", *"x" * length]
    total, texts = fed(pieces, many, [1, 2, 3, 4])
    assert texts == ["say "] * 5
    assert (total.stop_reason, total.num_tokens) == (f"{511:04}".ljust(length, "x"), 4 + length - 4)

    longest = ["🙂" * (MAX_STOP_STRING_CHARACTERS - 1) + chr(ord("a") + number) for number in range(26)]
    pieces = ["🙂"] * MAX_STOP_STRING_CHARACTERS + ["!", *longest[25]]
    total, _ = fed(pieces, SamplingParams(stop=longest), [])
    assert (total.text, total.stop_reason) == ("🙂" * MAX_STOP_STRING_CHARACTERS + "!", longest[25])


def test_requests_share_what_they_have_in_common_while_they_run() -> None:
    stops = tuple(f"stop {number}" for number in range(40))
    first = StopStrings.of(stops)
    assert StopStrings.of((*stops[:20], *stops[20:])) is first
    assert StopStrings.of(stops[1:]) is not first
    assert StopStrings.of(()) is None
    alive = ref(first)
    del first
    assert alive() is None
