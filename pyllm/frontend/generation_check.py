"""Whether the engine generates: it is asked for one token. Knows no route.

The probe needs no key, so callers share one check, and at most one starts per second.
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
    """Any token that the engine computes during the check proves that it works."""

    def __init__(
        self, client: EngineClient, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self._client = client
        self._clock = clock
        self._patience = patience
        self._began = 0.0
        self._check: asyncio.Task[str] | None = None

    async def trouble(self) -> str:
        """Return why the engine generates nothing, or an empty text."""
        if self._check is None or (self._check.done() and self._clock() - self._began >= VALIDITY):
            self._began = self._clock()
            self._check = asyncio.create_task(self._generate(), name="pyllm-generation-check")
        return await asyncio.shield(self._check)  # Others may wait for it, too.

    async def _generate(self) -> str:
        before = 0
        try:
            before = await self._num_computed_tokens()
            deltas = self._client.generate(_PROMPT, _ONE_TOKEN)
            async with asyncio.timeout(self._patience), aclosing(deltas):
                async for delta in deltas:
                    if delta.tokens:
                        return ""
            return "the engine ended a request without a token"
        except TimeoutError:
            return await self._trouble_of_others(before)
        except PyllmError as error:
            return str(error)

    async def _trouble_of_others(self, before: int) -> str:
        """The check may wait behind others, whose tokens are computed."""
        try:
            if await self._num_computed_tokens() > before:
                return ""
        except (PyllmError, TimeoutError):
            pass  # That it does not answer is the same trouble.
        return f"the engine gave no token within {self._patience:g} s"

    async def _num_computed_tokens(self) -> int:
        """The core's own count, which has the requests of all API processes."""
        return (await self._client.stats())["num_computed_tokens"]
