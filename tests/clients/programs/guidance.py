"""guidance: roles, generated text, a schema."""

from typing import Any

from checks import Servers, check, main
from guidance import assistant, gen, system, user
from guidance import json as gen_json
from guidance.models import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


def of_script(servers: Servers) -> Any:
    """The scripted model."""
    return OpenAI("scripted", base_url=f"{servers.scripted}/v1", api_key="none", echo=False)


@check
def chat(servers: Servers) -> None:
    model = of_script(servers)
    with system():
        model += "Be brief."
    with user():
        model += "Hi"
    with assistant():
        model += gen("answer", max_tokens=50)
    assert model["answer"] == "Hello from the script."


@check
def typed_answer(servers: Servers) -> None:
    model = of_script(servers)
    with user():
        model += "Name a city with its country."
    with assistant():
        model += gen_json("answer", schema=Place)
    assert Place.model_validate_json(model["answer"]) == Place(city="Paris", country="France")


main()
