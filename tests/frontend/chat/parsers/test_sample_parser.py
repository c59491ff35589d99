"""Tokens of reasoning are counted alike, however a sample's deltas are merged."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, Piece, folded
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.text.detokenizer import Detokenizer, TextDelta
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode
from tests.tiers import cases

REASONING = "<think>It is ü 🙂 the capital.</think>"


def deltas(tokenizer: Tokenizer, text: str, sizes: list[int]) -> list[TextDelta]:
    """What a sample of this text gives, in deltas of some numbers of tokens; the rest is the last."""
    params = SamplingParams(stop=["capital!"])
    detokenizer = Detokenizer(tokenizer.text_decoder([], False), params, StopStrings.of(params.stop_strings))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    parts = []
    for size in sizes:
        parts.append(detokenizer.feed(tokens[:size], FinishCode.NONE))
        tokens = tokens[size:]
    return [*parts, detokenizer.feed([*tokens, 0], FinishCode.STOP)]


def run(tokenizer: Tokenizer, parts: list[TextDelta], opened: bool) -> tuple[ParsedText, int]:
    parser = SampleParser(None, lambda: tokenizer.text_decoder([], False), opened)
    pieces: list[Piece] = []
    for part in parts:
        pieces += parser.feed(part)
    return folded(pieces), parser.num_reasoning_tokens


@settings(max_examples=cases(50))
@given(st.lists(st.integers(0, 20), max_size=6), st.sampled_from(["\n\nParis", "", REASONING]))
def test_the_count_is_up_to_the_closing(tokenizer: Tokenizer, sizes: list[int], rest: str) -> None:
    parsed, count = run(tokenizer, deltas(tokenizer, REASONING + rest, sizes), opened=False)
    assert count == len(tokenizer.encode(REASONING))
    assert parsed == ParsedText(rest.lstrip(), "It is ü 🙂 the capital.")


def test_without_reasoning_there_is_none_and_without_its_end_it_is_all(tokenizer: Tokenizer) -> None:
    text = "Paris"
    assert run(tokenizer, deltas(tokenizer, text, []), opened=False) == (ParsedText(text), 0)
    assert run(tokenizer, deltas(tokenizer, text, [1]), opened=True) == (
        ParsedText("", text),
        len(tokenizer.encode(text)) + 1,
    )
