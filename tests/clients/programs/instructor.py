"""Instructor: typed answers in each of its modes, and as a stream."""

from typing import Any, Literal

import instructor
import openai
from checks import Servers, check, main
from pydantic import BaseModel

PARIS = {"city": "Paris", "country": "France"}


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


class Choice(BaseModel):
    """A typed answer that a small model gives in a few tokens."""

    answer: Literal["yes", "no"]
    certain: bool


def of_script(servers: Servers, mode: instructor.Mode) -> Any:
    """The scripted model in one of Instructor's modes."""
    return instructor.from_openai(openai.OpenAI(base_url=f"{servers.scripted}/v1", max_retries=0), mode=mode)


def typed(servers: Servers, mode: instructor.Mode, prompt: str) -> None:
    """One typed answer."""
    answer = of_script(servers, mode).chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": prompt}], response_model=Place, max_retries=0
    )
    assert answer.model_dump() == PARIS


@check
def tools(servers: Servers) -> None:
    typed(servers, instructor.Mode.TOOLS, "Call it typed.")


@check
def strict_tools(servers: Servers) -> None:
    typed(servers, instructor.Mode.TOOLS_STRICT, "Call it typed.")


@check
def json_mode(servers: Servers) -> None:
    typed(servers, instructor.Mode.JSON, "Name a city with its country.")


@check
def json_schema(servers: Servers) -> None:
    typed(servers, instructor.Mode.JSON_SCHEMA, "Name a city with its country.")


@check
def any_model_answers_in_the_form(servers: Servers) -> None:
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{servers.model}/v1", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
    )
    answer = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Yes or no?"}],
        response_model=Choice,
        max_retries=0,
        max_tokens=100,
    )
    assert isinstance(answer, Choice)


@check
def partial_stream(servers: Servers) -> None:
    parts = list(
        of_script(servers, instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model="scripted",
            messages=[{"role": "user", "content": "Name a city with its country."}],
            response_model=Place,
            max_retries=0,
        )
    )
    assert parts[-1].model_dump() == PARIS


main()
