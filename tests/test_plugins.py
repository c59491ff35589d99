"""A request's `extra_args` go to the plugins that they name, and plain values to the only one that there is."""

from typing import Any

import pytest

from pyllm.errors import RequestError
from pyllm.plugins import arguments_by_plugin


@pytest.mark.parametrize(
    ("arguments", "plugins", "expected"),
    [
        ({}, ["even"], {}),
        ({"even": {"limit": 3}}, ["even", "odd"], {"even": {"limit": 3}}),
        ({"even": 3, "odd": [1]}, ["even", "odd"], {"even": 3, "odd": [1]}),
        ({"target_token": 67, "strict": None}, ["even"], {"even": {"target_token": 67, "strict": None}}),
    ],
)
def test_arguments_go_to_a_plugin(arguments: dict[str, Any], plugins: list[str], expected: dict[str, Any]) -> None:
    assert arguments_by_plugin(arguments, plugins) == expected


@pytest.mark.parametrize(
    ("arguments", "plugins", "text"),
    [
        ({"third": {}}, ["even"], "there is no logits processor or sampler 'third'; installed are even"),
        ({"target_token": 67}, [], "gets target_token is not clear; installed are none"),
        ({"target_token": 67}, ["even", "odd"], "gets target_token is not clear; installed are even, odd"),
        ({"target_token": 67, "even": {}}, ["even"], "is not clear"),
    ],
)
def test_arguments_that_are_nobodys_are_refused(arguments: dict[str, Any], plugins: list[str], text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        arguments_by_plugin(arguments, plugins)
    assert refused.value.parameter == "extra_args"
