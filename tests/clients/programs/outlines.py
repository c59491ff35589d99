"""Outlines: typed answers, choices, regular expressions and grammars, by vLLM's names for them."""

import re
from typing import Any, Literal

import openai
import outlines
from checks import Servers, check, main
from outlines.types import CFG, Regex
from pydantic import BaseModel


class Choice(BaseModel):
    """A typed answer that a small model gives in a few tokens."""

    answer: Literal["yes", "no"]
    certain: bool


def of_model(servers: Servers) -> Any:
    """The embedded model, which Outlines takes for one of vLLM's."""
    return outlines.from_vllm(openai.OpenAI(base_url=f"{servers.model}/v1"), "smol")


@check
def text(servers: Servers) -> None:
    assert of_model(servers)("Hi", max_tokens=8)


@check
def stream(servers: Servers) -> None:
    assert "".join(of_model(servers).stream("Hi", max_tokens=8))


@check
def typed_answer(servers: Servers) -> None:
    answer = of_model(servers)("Yes or no?", Choice, max_tokens=100)
    assert Choice.model_validate_json(answer)


@check
def choice(servers: Servers) -> None:
    assert of_model(servers)("Yes or no?", Literal["yes", "no"], max_tokens=8) in {"yes", "no"}


@check
def regular_expression(servers: Servers) -> None:
    for seed in range(10):
        answer = of_model(servers)("A date:", Regex(r"\d{4}-\d{2}-\d{2}"), max_tokens=30, seed=seed, temperature=1)
        assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", answer), answer


@check
def grammar(servers: Servers) -> None:
    answer = of_model(servers)("Yes or no?", CFG('start: "yes" | "no"'), max_tokens=8)
    assert answer in {"yes", "no"}


@check
def typed_answer_by_openai_names(servers: Servers) -> None:
    model: Any = outlines.from_openai(openai.OpenAI(base_url=f"{servers.model}/v1"), "smol")
    assert Choice.model_validate_json(model("Yes or no?", Choice, max_tokens=100))


main()
