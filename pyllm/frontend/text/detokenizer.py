"""One sample's tokens to its text: incremental, ended by stop strings. Does not know where tokens come from."""

import msgspec

from pyllm.client.columns import StartTimes
from pyllm.client.logprobs import LogprobEntries, extended
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.frontend.text.text_decoder import TextDecoder
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode

_REASONS = {code: code.name.lower() for code in FinishCode if code}


class TextDelta(msgspec.Struct, gc=False):
    """New text, and the tokens that count as output with it.

    `finish_reason` is stop, length, abort, error, deadline, or None while the sample goes on. `stop_reason` is the stop
    string, or the id from `stop_token_ids`, that ended it. `logprobs` has an entry for each token, where they came.
    `cached_tokens` of the prompt were in the prefix cache. `start_times` come with the request's first output.
    """

    text: str
    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[LogprobEntries] | None = None
    cached_tokens: int = 0
    start_times: StartTimes | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def merge(self, later: "TextDelta") -> None:
        """Append a later delta."""
        self.text += later.text
        self.tokens.extend(later.tokens)
        self.logprobs = extended(self.logprobs, later.logprobs)
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        self.cached_tokens = max(self.cached_tokens, later.cached_tokens)


class Detokenizer:
    """Turns tokens into text, in deltas of any size; the text does not depend on how they are split.

    Text that may be the beginning of a stop string is held back until it is known not to be. Of several stop strings
    the one that is complete first counts; one that is complete within the first `min_tokens` tokens does not. The text
    ends before it, and tokens are counted up to the one that completed it. A stop token has no text. With
    `include_stop_str_in_output` both are part of the text.
    """

    __slots__ = (
        "_decoder",
        "_held",
        "_include_stop",
        "_num_unstoppable",
        "_stop_strings",
        "_stop_token_ids",
    )

    def __init__(self, decoder: TextDecoder, params: SamplingParams, stop_strings: StopStrings | None) -> None:
        """`stop_strings` are those of the parameters, for all samples of the request."""
        self._decoder = decoder
        self._stop_strings = stop_strings
        self._stop_token_ids = params.stop_token_ids or ()
        self._include_stop = params.include_stop_str_in_output
        self._num_unstoppable = params.min_tokens  # further tokens that end at no stop string
        self._held = ""

    def feed(self, tokens: list[int], finish: FinishCode) -> TextDelta:
        """The text that these tokens add; with a `finish`, or after a stop string, the sample's last."""
        stop_strings = self._stop_strings
        if not finish and stop_strings is None:
            return TextDelta(self._decoder.decode(tokens), tokens)
        stopped = finish is FinishCode.STOP and bool(tokens)
        visible = tokens[:-1] if stopped and not self._include_stop else tokens
        if stop_strings is not None:
            delta = self._feed_until_stop(stop_strings, tokens, visible)
            if delta.finish_reason is not None:
                return delta
            if finish:
                delta.text += self._held
        else:
            delta = TextDelta(self._decoder.decode(visible), tokens)
        if finish:
            delta.finish_reason = _REASONS[finish]
            if stopped and tokens[-1] in self._stop_token_ids:
                delta.stop_reason = tokens[-1]
        return delta

    def _feed_until_stop(self, stop_strings: StopStrings, tokens: list[int], visible: list[int]) -> TextDelta:
        pieces = []
        for count, token in enumerate(visible, 1):
            piece = self._decoder.decode((token,))
            window = self._held + piece
            counts = self._num_unstoppable == 0
            if not counts:
                self._num_unstoppable -= 1
            if not stop_strings.may_begin_in(window):  # Then no text is held back.
                pieces.append(piece)
                continue
            if counts and (match := stop_strings.find(window, len(window) - len(piece))) is not None:
                start, end = match
                pieces.append(window[: end if self._include_stop else start])
                return TextDelta("".join(pieces), tokens[:count], "stop", window[start:end])
            kept = stop_strings.num_held(window)
            pieces.append(window[: len(window) - kept])
            self._held = window[len(window) - kept :]
        return TextDelta("".join(pieces), tokens)
