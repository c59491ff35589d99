"""The page of what runs: it is of the installed transformers, and says what the issue of breadth promises."""

import re
from pathlib import Path

import pytest
import transformers

from tests.tiers import full
from tests.workers.transformers_backend.table import Outcome, page, try_model
from tests.workers.transformers_backend.tiny_configs import causal_models

PAGE = Path(__file__).parents[3] / "docs/transformers.md"


def rows() -> dict[str, str]:
    row = r"^\| (\w+) \| (?:yes)? \| (equal|refused|wrong|untried) \|"
    return dict(re.findall(row, PAGE.read_text(), re.MULTILINE))


def test_the_page_has_every_class_and_none_is_wrong() -> None:
    found = rows()
    assert f"in `transformers` {transformers.__version__}," in PAGE.read_text()
    assert found.keys() == causal_models().keys()
    assert "wrong" not in found.values()
    assert list(found.values()).count("equal") >= 0.6 * len(found)


@pytest.mark.parametrize("first", [0, full(20), full(40)])
def test_some_rows_are_still_so(first: int) -> None:
    """About ten classes, evenly spread over the table; `make oracle FAMILIES=transformers` tries all."""
    for name in sorted(rows())[first::60]:
        assert try_model(causal_models()[name]).result == rows()[name], name


def test_a_page_counts_and_cuts_long_reasons() -> None:
    family = "LlamaForCausalLM"
    text = page({"A": Outcome("equal"), "B": Outcome("refused", "a | b\n" + "c" * 300), family: Outcome("refused")})
    assert "**2 of\n3 (67 %) run, 1 of them natively**" in text
    assert "\n| LlamaForCausalLM | yes | refused |  |\n" in text
    assert re.search(r"\| B \|  \| refused \| a / b c+ \|\n", text)
