"""The pieces of answers, and the fields of requests. Knows no source of answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pyllm.parameters.arguments import check, mapping, text
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.server_client import Usage

# A role and its content, as in OpenAI's API.
Message = Mapping[str, str]
# Fields of a request under OpenAI's and vLLM's names; a missing one has the default of the server or the model's files.
Fields = dict[str, Any]

# Fields that are not those of `SamplingParams`, with their checks.
_OTHER_FIELDS = {"reasoning_effort": text, "response_format": mapping, "chat_template_kwargs": mapping}
# Fields that `/params` shows and sets.
PARAMETER_NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning_effort"),
)
FIELD_NAMES = (*PARAMETER_NAMES, "n", "response_format", "chat_template_kwargs")


def checked(fields: Mapping[str, Any]) -> Fields:
    """The fields that are not None.

    Raises:
        RequestError: a value is out of its range; the text has the range.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    SamplingParams(**sampling_fields(given))
    check("max_tokens", given.get("max_tokens"), given.get("max_tokens") != 0, "at least 1")
    for name, check_value in _OTHER_FIELDS.items():
        if name in given:
            check_value(name, given[name])
    return given


def sampling_fields(fields: Mapping[str, Any]) -> Fields:
    """The fields that are those of `SamplingParams`, too."""
    return {name: value for name, value in fields.items() if name not in _OTHER_FIELDS}


class AnswerPiece(msgspec.Struct, frozen=True):
    """More text of one choice, its finish reason, or, in a piece of its own, the token usage."""

    content: str = ""
    reasoning: str = ""
    choice: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None
