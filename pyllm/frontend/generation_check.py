"""Whether the engine generates: it is asked for one token. Knows no route.

Who asks needs no key, so that however many ask, one check runs at a time, and at most one begins a second.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from pyllm.errors import PyllmError
from pyllm.frontend.client import EngineClient
from pyllm.sampling_params import SamplingParams

# Seconds that a token may take, as in SGLang.
PATIENCE = 20.0
# Seconds for which a result holds, counted from the beginning of its check.
VALIDITY = 1.0

_PROMPT = (0,)
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class GenerationCheck:
    """`num_tokens` counts what was generated for anybody, which shows the same as a token of the check's own."""

    def __init__(
        self,
        client: EngineClient,
        num_tokens: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._client = client
        self._num_tokens = num_tokens
        self._clock = clock
        self._patience = patience
        self._began = 0.0
        self._check: asyncio.Task[str] | None = None

    async def trouble(self) -> str:
        """Why the engine generates nothing; an empty text where it does."""
        if self._check is None or (self._check.done() and self._clock() - self._began >= VALIDITY):
            self._began = self._clock()
            self._check = asyncio.create_task(self._generate(), name="pyllm-generation-check")
        return await asyncio.shield(self._check)  # Others may wait for it, too.

    async def _generate(self) -> str:
        before = self._num_tokens()
        try:
            deltas = self._client.generate(_PROMPT, _ONE_TOKEN)
            async with asyncio.timeout(self._patience), aclosing(deltas):
                async for delta in deltas:
                    if delta.tokens:
                        return ""
            return "the engine ended a request without a token"
        except TimeoutError:  # It may wait behind others, whose tokens come.
            return "" if self._num_tokens() > before else f"the engine gave no token within {self._patience:g} s"
        except PyllmError as error:
            return str(error)
