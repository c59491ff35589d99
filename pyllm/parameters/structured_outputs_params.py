"""`StructuredOutputsParams`: a constraint on a request's output, checked. Converts and compiles no grammar."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.parameters import vllm_parameters
from pyllm.parameters.arguments import NamedParameters, flag, mapping, text, texts

MAX_GRAMMAR_BYTES = 1 << 20
_FORMS = ("json", "regex", "choice", "grammar", "json_object")


class StructuredOutputsParams(
    msgspec.Struct, metaclass=NamedParameters, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A constraint on the output, in exactly one of these forms; the names are vLLM's.

    `json` is a JSON schema, as a text or as a dict; `json_object` True asks for any JSON object. `regex` matches the
    whole output, `choice` has the outputs to choose from. `grammar` is a Lark grammar with llguidance's extensions, a
    GBNF grammar, or a grammar in llguidance's own JSON. The other fields are vLLM's, and may only have their defaults.

    Raises:
        RequestError: none of them is given, or several, or one of another type.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        fixed = vllm_parameters.STRUCTURED_OUTPUTS
        vllm_parameters.refuse_other_values(fixed, {name: getattr(self, name) for name in fixed})
        self._check_types()
        given = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(_FORMS)
            has = " and ".join(given) or "none"
            raise RequestError(f"structured_outputs needs exactly one of {names}, got {has}", "structured_outputs")

    def _check_types(self) -> None:
        if self.json is not None and not isinstance(self.json, str):
            mapping("structured_outputs.json", self.json)
        for name in ("regex", "grammar"):
            if (value := getattr(self, name)) is not None:
                text(f"structured_outputs.{name}", value)
        if self.choice is not None:
            texts("structured_outputs.choice", self.choice)
        if self.json_object is not None:
            flag("structured_outputs.json_object", self.json_object)


class ResolvedConstraint(StructuredOutputsParams, frozen=True, kw_only=True):
    """A constraint in the form for workers: `grammar` is Lark, or llguidance's JSON, and needs no conversion.

    `pyllm.frontend.text.resolve_constraint` makes one from a JSON schema, a regex, choices or GBNF.

    Raises:
        RequestError: `grammar` is empty, longer than `MAX_GRAMMAR_BYTES`, or no text that can be sent.
    """

    grammar: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grammar(self.grammar, "grammar")


def check_grammar(text: str, name: str) -> None:
    """Refuse a grammar that is empty, too long, or not valid Unicode; `name` is the name of its field.

    Raises:
        RequestError: with the numbers.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        message = f"structured_outputs: {name} has half of a surrogate pair, which is no character"
        raise RequestError(message, "structured_outputs") from None
    if not 0 < size <= MAX_GRAMMAR_BYTES:
        message = f"structured_outputs: {name} must have 1 to {MAX_GRAMMAR_BYTES} bytes, got {size}"
        raise RequestError(message, "structured_outputs")
