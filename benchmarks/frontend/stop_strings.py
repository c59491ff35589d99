"""The cost of stop strings per token, from token ids to text, and per request.

`names` begin with a line break, like those of roles and speakers. `phrases` begin with words of the text, so that text
is held back at nearly every token. No match is ever complete. Beside each figure is the cost of a search for every
string at every position.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from benchmarks.record import Record
from pyllm.bench.prompt_sets import WORDS
from pyllm.frontend.text.detokenizer import Detokenizer
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.parameters.sampling_params import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, SamplingParams
from pyllm.wire.messages import FinishCode

NUMBERS = (1, 4, 64, MAX_STOP_STRINGS)
NUM_TOKENS = 10_000
MAX_CHARACTERS = 1 << 22  # to search in the plain way: all strings at all tokens
REPETITIONS = 5


class PlainStopStrings:
    """The results of `StopStrings` by a search for every string at every position."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._longest = max(map(len, strings))

    def may_begin_in(self, text: str) -> bool:
        return True

    def find(self, text: str, num_old: int) -> tuple[int, int] | None:
        matches = [
            (start + len(each), start)
            for each in self._strings
            if (start := text.find(each, max(0, num_old - len(each) + 1))) >= 0
        ]
        return min(matches)[::-1] if matches else None

    def num_held(self, text: str) -> int:
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(each.startswith(tail) for each in self._strings):
                return len(tail)
        return 0


class Words:
    """A decoder for tokens that are words, with a space before each and a line break after some."""

    def __init__(self) -> None:
        self._pieces = [f" {word}" for word in WORDS] + ["\n", "."]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([self._pieces[token] for token in tokens])


def per_token() -> Iterator[Record]:
    for kind, strings in (("names", names), ("phrases", phrases)):
        for number in NUMBERS:
            stops = strings(number)
            num_plain = min(NUM_TOKENS, MAX_CHARACTERS // sum(map(len, stops)))
            plain = microseconds(partial(feed, PlainStopStrings(stops), num_plain)) / num_plain
            value = microseconds(partial(feed, StopStrings(stops), NUM_TOKENS)) / NUM_TOKENS
            yield {
                "name": "stop_strings.token_us",
                "value": round(value, 2),
                "unit": "us",
                "kind": kind,
                "stops": number,
                "plain": round(plain, 2),
            }


def per_request() -> Iterator[Record]:
    """Figures per request; the last two have the most characters allowed, of a small and of a large alphabet."""
    cases = [("phrases", phrases(number)) for number in NUMBERS]
    length = MAX_STOP_CHARACTERS // MAX_STOP_STRINGS
    for kind, first, last in (("ASCII", 0x20, 0x7E), ("Chinese", 0x4E00, 0x9FFF)):
        random = Random(1)
        drawn = ("".join(chr(random.randint(first, last)) for _ in range(length)) for _ in range(MAX_STOP_STRINGS))
        cases.append((f"{length} characters each, {kind}", tuple(drawn)))
    for kind, stops in cases:
        value = round(microseconds(partial(StopStrings, stops)), 1)
        yield {"name": "stop_strings.make_us", "value": value, "unit": "us", "kind": kind, "stops": len(stops)}


def names(number: int) -> tuple[str, ...]:
    return tuple(f"\n{first.title()} {last.title()}:" for first, last in pairs(number))


def phrases(number: int) -> tuple[str, ...]:
    return tuple(f" {first} {last}!" for first, last in pairs(number))


def pairs(number: int) -> list[tuple[str, str]]:
    return Random(2).sample([(first, last) for first in WORDS for last in WORDS], number)


def feed(stop_strings: StopStrings | PlainStopStrings, num_tokens: int) -> None:
    params = SamplingParams(stop="not looked at")
    detokenizer = Detokenizer(Words(), params, stop_strings)
    for token in Random(3).choices(range(len(WORDS) + 2), k=num_tokens):
        assert detokenizer.feed([token], FinishCode.NONE).finish_reason is None


def microseconds(call: Callable[[], object]) -> float:
    """The least microseconds of several calls."""
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times) * 1e6


FIGURES = {"stop_strings.token_us": per_token, "stop_strings.make_us": per_request}
