"""The answers of `/infill` as JSON: the events of a stream, which has no last one of its own, and the whole."""

from typing import Any

import msgspec
from msgspec import Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.llama_cpp.protocol import Infill, InfillPiece, InfillSettings, Timings
from pyllm.frontend.openai.error_format import error_response
from pyllm.frontend.requests.generation import Generation, TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta

_encode = msgspec.json.Encoder().encode


class InfillFormat:
    """An `AnswerFormat` of one request. `names` are its response fields; empty for all."""

    def __init__(
        self,
        generation: Generation,
        model: str,
        prompt: str,
        settings: InfillSettings,
        *,
        shows_tokens: bool,
        names: list[str],
    ) -> None:
        self._generation = generation
        self._model = model
        self._prompt = prompt
        self._settings = settings
        self._shows_tokens = shows_tokens
        self._names = names
        self._has_new_line: set[int] = set()

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """New text, and the last event of a choice that has ended."""
        events = b""
        if delta.text:
            if "\n" in delta.text:
                self._has_new_line.add(choice)
            counts = self._generation.counts_of(choice)
            piece = InfillPiece(choice, delta.text, delta.tokens, False, counts.completion, counts.prompt)
            events = _event(piece)
        if delta.finish_reason is not None:
            delta.text, delta.tokens = "", []
            events += _event(self._last(choice, delta))
        return events

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """Nothing: each event counts tokens."""
        del choice
        return None

    def end(self, counts: TokenCounts) -> bytes:
        """Nothing: each choice has its own last event."""
        del counts
        return b""

    def failed(self, failure: Failure) -> bytes:
        """The error."""
        return _event(error_response(failure))

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> object:
        """The answer; a list for several choices."""
        del prompts, counts
        answers = []
        for index, choice in enumerate(choices):
            if "\n" in choice.text:
                self._has_new_line.add(index)
            if not self._shows_tokens:
                choice.tokens = []
            answers.append(self._last(index, choice))
        return answers[0] if len(answers) == 1 else answers

    def error(self, failure: Failure) -> Struct:
        """The error by itself."""
        return error_response(failure)

    def _last(self, choice: int, delta: TextDelta) -> Infill | dict[str, Any]:
        counts = self._generation.counts_of(choice)
        is_word = isinstance(delta.stop_reason, str)
        last = Infill(
            index=choice,
            content=delta.text,
            tokens=delta.tokens,
            stop=True,
            model=self._model,
            tokens_predicted=counts.completion,
            tokens_evaluated=counts.prompt,
            generation_settings=self._settings,
            prompt=self._prompt,
            has_new_line=choice in self._has_new_line,
            truncated=counts.prompt + counts.completion >= self._settings.n_ctx,
            stop_type="limit" if delta.finish_reason != "stop" else "word" if is_word else "eos",
            stopping_word=str(delta.stop_reason) if is_word else "",
            tokens_cached=counts.cached,
            timings=_timings(counts, *self._generation.seconds_of(choice)),
        )
        return _selected(last, self._names) if self._names else last


def _timings(counts: TokenCounts, to_first: float, to_last: float) -> Timings:
    computed = counts.prompt - counts.cached
    return Timings(
        counts.cached, computed, *_speed(computed, to_first), counts.completion, *_speed(counts.completion, to_last)
    )


def _speed(number: int, seconds: float) -> tuple[float, float, float]:
    """Milliseconds, those of one token, and tokens a second."""
    return 1000 * seconds, 1000 * seconds / number if number else 0.0, number / seconds if seconds else 0.0


def _selected(answer: Infill, names: list[str]) -> dict[str, Any]:
    """The fields of these names, under them: a part of another field is `timings/prompt_n`."""
    found: dict[str, Any] = {}
    fields = msgspec.to_builtins(answer)
    for name in names:
        value: Any = fields
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found


def _event(body: object) -> bytes:
    return b"data: %b\n\n" % _encode(body)
