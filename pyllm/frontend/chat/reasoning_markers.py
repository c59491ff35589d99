"""The markers of a model's reasoning as token ids, to bound its length. Knows only a request's sampling parameters."""

from functools import cached_property
from typing import Self

from pyllm.errors import Field, RequestError
from pyllm.frontend.chat.parsers.parser_selection import reasoning_form, shown_reasoning_parser
from pyllm.frontend.chat.parsers.reasoning_parsers import ReasoningForm
from pyllm.frontend.text.sampling_texts import token_forms
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams

Sequences = list[tuple[int, ...]]

# Whitespace that may share a token with a marker; `token_forms` has further texts before one.
_SPACES = ("", "\n", "\n\n", " ")


class ReasoningMarkers:
    """The markers of one model; `form` is None where it has no reasoning parser."""

    def __init__(self, tokenizer: Tokenizer, form: ReasoningForm | None) -> None:
        self._tokenizer = tokenizer
        self._form = form

    @classmethod
    def shown_by(cls, template: ChatTemplate | None, tokenizer: Tokenizer) -> Self:
        """The markers that a model's chat template shows."""
        name = "none" if template is None else shown_reasoning_parser(template.for_tools(True).source)
        return cls(tokenizer, None if name == "none" else reasoning_form(name))

    @property
    def missing(self) -> str:
        """The reason why reasoning cannot be bounded; empty if it can."""
        if self._form is None:
            return "there is no reasoning parser, so nothing says where the model's reasoning ends"
        if self._form.in_channels:
            return "the model may reason in several messages, and no marker ends them all: use reasoning_effort"
        return self._unwritten

    def resolve(self, params: SamplingParams, opened: bool = False) -> None:
        """Set the markers in parameters that bound the reasoning; the prompt may have `opened` it.

        Raises:
            RequestError: the reasoning cannot be bounded.
        """
        if not _needs_markers(params):
            return
        if self.missing:
            raise RequestError(f"thinking_token_budget is not supported here: {self.missing}", "thinking_token_budget")
        params.reasoning_start_token_ids = () if opened else self._starts
        params.reasoning_end_token_ids = self._ends

    def resolve_plain(self, params: SamplingParams) -> None:
        """Set them for a prompt that is no conversation, whose constraint would leave no room for reasoning.

        Raises:
            RequestError: the reasoning cannot be bounded, or there is a constraint.
        """
        needs_markers = _needs_markers(params)
        self.resolve(params)
        if needs_markers and params.structured_outputs is not None:
            budget, constraint = Field("thinking_token_budget"), Field("structured_outputs")
            text = (constraint, " leave no room for reasoning in a plain prompt: leave ", budget, " out")
            raise RequestError(text, budget)

    @cached_property
    def _unwritten(self) -> str:
        assert self._form is not None
        closing = self._form.closings[0]
        written = self._tokenizer.decode(self._ends[0], skip_special_tokens=False)
        return "" if written.strip() == closing else f"the tokenizer cannot write {closing!r}"

    @cached_property
    def _starts(self) -> Sequences:
        assert self._form is not None
        openings = self._form.openings
        forms = _forms([a + text + b for text in openings for a in _SPACES for b in _SPACES], self._tokenizer)
        # Nothing but whitespace precedes an opening, not even in its first token.
        return [form for form in forms if self._tokenizer.decode(form, skip_special_tokens=False).strip() in openings]

    @cached_property
    def _ends(self) -> Sequences:
        assert self._form is not None
        forms = _forms([text + after for after in _SPACES for text in self._form.closings], self._tokenizer)
        return [form for form in forms if _parts(form).isdisjoint(forms)]  # A longer form matches too late.


def _needs_markers(params: SamplingParams) -> bool:
    return params.thinking_token_budget is not None and not params.reasoning_end_token_ids


def _parts(form: tuple[int, ...]) -> set[tuple[int, ...]]:
    """All proper prefixes and suffixes of a form."""
    return {part for at in range(1, len(form)) for part in (form[:at], form[at:])}


def _forms(texts: list[str], tokenizer: Tokenizer) -> Sequences:
    return list(dict.fromkeys(tuple(form) for forms in token_forms(texts, tokenizer) for form in forms))
