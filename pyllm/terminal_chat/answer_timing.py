"""Measures the speed of an answer, and describes it. Knows neither source nor display."""

import time
from collections.abc import Callable

from pyllm.terminal_chat.answer_source import AnswerPiece, TokenUsage


class AnswerTiming:
    """Times one answer, from the creation of this object on. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._first = self._last = 0.0
        self._num_pieces = 0
        self.usage: TokenUsage | None = None
        self.finish_reason: str | None = None
        self.is_stopped = False  # by the user

    def add(self, piece: AnswerPiece) -> None:
        """Record the next piece."""
        self.usage = piece.usage or self.usage
        self.finish_reason = piece.finish_reason or self.finish_reason
        if piece.content or piece.reasoning:
            self._num_pieces += 1
            self._last = self._clock()
            self._first = self._first or self._last

    def summary(self) -> str:
        """Tokens, tokens per second after the first one, the time to the first one; unknown figures are left out.

        A stopped answer has no token counts, since they arrive with the end.
        """
        parts = ["stopped"] * self.is_stopped
        usage = self.usage
        if usage is not None:
            parts.append(f"{usage.num_output_tokens} tokens")
            if self._last > self._first and usage.num_output_tokens > 1:
                parts.append(f"{(usage.num_output_tokens - 1) / (self._last - self._first):.1f} tokens/s")
        if self._num_pieces:
            parts.append(f"first token after {self._first - self._start:.2f} s")
        if usage is not None:
            cached = f" ({usage.num_cached_tokens} cached)" if usage.num_cached_tokens else ""
            parts.append(f"prompt {usage.num_prompt_tokens} tokens{cached}")
        if self.finish_reason == "length":
            parts.append("cut off at the limit of tokens")
        elif self.finish_reason not in {None, "stop"}:
            parts.append(f"ended by {self.finish_reason}")
        return " · ".join(parts)
