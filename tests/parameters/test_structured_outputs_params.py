import re
from typing import Any

import pytest

from pyllm import StructuredOutputsParams
from pyllm.errors import RequestError
from pyllm.parameters.vllm_parameters import STRUCTURED_OUTPUTS


@pytest.mark.parametrize(
    "options", [{}, {"json": {}, "regex": "a"}, {"json_object": False}, {"choice": ["a"], "json_object": True}]
)
def test_structured_outputs_have_exactly_one_form(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="needs exactly one of json, regex, choice, grammar, json_object") as refused:
        StructuredOutputsParams(**options)
    assert refused.value.parameter == "structured_outputs"


def test_a_constraints_other_fields_have_one_value() -> None:
    StructuredOutputsParams(regex="a", disable_any_whitespace=False, whitespace_pattern=None)
    for name, (_, instead) in STRUCTURED_OUTPUTS.items():
        with pytest.raises(RequestError, match=rf"^{name} can only be .*: {re.escape(instead)}$"):
            StructuredOutputsParams(**{"regex": "a", name: "x"})
    for name, value in (("regex", 5), ("choice", "a"), ("grammar", b"a"), ("json", 5), ("json_object", "yes")):
        with pytest.raises(RequestError, match=rf"^structured_outputs\.{name} must be") as refused:
            StructuredOutputsParams(**{name: value})  # type: ignore[arg-type]
        assert refused.value.parameter == "structured_outputs"
