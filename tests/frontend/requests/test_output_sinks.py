"""Sinks between a request's output and its answer cut texts, and end choices early."""

from typing import Any

from pyllm.client.logprobs import LogprobEntries
from pyllm.errors import PyllmError
from pyllm.frontend.requests.output_sinks import EndingSink
from pyllm.frontend.text.detokenizer import TextDelta


class Kept:
    """A sink that keeps what comes."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def delta(self, index: int, delta: TextDelta) -> None:
        self.calls.append((index, delta.text, delta.tokens, delta.finish_reason))

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        self.calls.append((index, logprobs))

    def error(self, error: PyllmError) -> None:
        self.calls.append(error)


def test_choices_are_cut_and_end_early_once_all_have_their_text() -> None:
    kept, ends = Kept(), []
    takes = [lambda text, end=f"end {index}": (text[:5], text == end) for index in range(3)]
    sink = EndingSink(kept, takes, lambda: ends.append(len(kept.calls)))
    for index, text, reason in [(0, "end 0", None), (1, "end 0", None), (0, "too much", None), (2, "", "stop")]:
        sink.delta(index, TextDelta(text, [1], reason))
        assert not ends
    sink.delta(1, TextDelta("end 1", [1]))
    sink.delta(0, TextDelta("", [], "abort"))
    assert ends == [5]
    assert [text for _, text, *_ in kept.calls] == ["end 0", "end 0", "too m", "", "end 1", ""]
