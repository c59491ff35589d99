"""The bar of a batch, made by whatever makes bars."""

from typing import Any

from pyllm.engine.prompt_progress import PromptProgress


class FakeBar:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.postfix = options["postfix"]
        self.num_done = 0
        self.is_closed = False

    def update(self, number: int) -> None:
        self.num_done += number

    def close(self) -> None:
        self.is_closed = True


def test_a_bar_counts_prompts_and_tells_rates() -> None:
    bars = []
    moments = iter([10.0, 12.0, 14.0])

    def make(**options: Any) -> FakeBar:
        bars.append(FakeBar(**options))
        return bars[0]

    with PromptProgress(2, make, clock=lambda: next(moments)) as progress:
        (bar,) = bars
        assert (bar.options["total"], bar.options["desc"]) == (2, "Processed prompts")
        assert bar.postfix == "est. speed input: 0.00 toks/s, output: 0.00 toks/s"
        progress.add(10, 4)
        assert bar.postfix == "est. speed input: 5.00 toks/s, output: 2.00 toks/s"
        progress.add(10, 4)
        assert bar.postfix == "est. speed input: 5.00 toks/s, output: 2.00 toks/s"
        assert bar.num_done == 2
    assert bar.is_closed


def test_without_a_bar_nothing_is_made() -> None:
    with PromptProgress(1, False) as progress:
        progress.add(1, 1)
