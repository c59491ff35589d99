"""The progress bar of a batch of prompts: finished prompts, and tokens per second. Knows no engine."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyllm.parameters.arguments import flag

# False: no bar; True: tqdm's bar; or a function that makes a bar, with the arguments of `tqdm.tqdm`.
UseTqdm = bool | Callable[..., Any]


class PromptProgress:
    """The bar as a context manager; call `add` on one thread.

    Raises:
        RequestError: `use_tqdm` is neither True nor False nor a callable.
    """

    def __init__(self, total: int, use_tqdm: UseTqdm, clock: Callable[[], float] = time.perf_counter) -> None:
        if not callable(use_tqdm):
            use_tqdm = False if use_tqdm is None else flag("use_tqdm", use_tqdm)
        self._total = total
        self._use_tqdm = use_tqdm
        self._clock = clock
        self._num_prompt_tokens = self._num_output_tokens = 0
        self._bar: Any | None = None
        self._start = 0.0

    def __enter__(self) -> "PromptProgress":
        if self._use_tqdm:
            from tqdm.auto import tqdm

            make = tqdm if isinstance(self._use_tqdm, bool) else self._use_tqdm
            self._start = self._clock()
            self._bar = make(total=self._total, desc="Processed prompts", dynamic_ncols=True, postfix=self._rates(0.0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Count one more finished prompt."""
        if self._bar is None:
            return
        self._num_prompt_tokens += num_prompt_tokens
        self._num_output_tokens += num_output_tokens
        self._bar.postfix = self._rates(self._clock() - self._start)
        self._bar.update(1)

    def _rates(self, seconds: float) -> str:
        """The text of vLLM's bar."""
        prompt, output = (
            number / seconds if seconds else 0.0 for number in (self._num_prompt_tokens, self._num_output_tokens)
        )
        return f"est. speed input: {prompt:.2f} toks/s, output: {output:.2f} toks/s"
