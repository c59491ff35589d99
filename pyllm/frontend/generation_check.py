"""Checks that the engine generates, by asking it for one token. Knows no route.

The probe needs no key, so callers share one check, and at most one starts per second.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from pyllm.client.client import EngineClient
from pyllm.errors import PyllmError
from pyllm.parameters.sampling_params import SamplingParams

# Seconds that a token may take, as in SGLang.
PATIENCE = 20.0
# Seconds for which a result holds, counted from the beginning of its check.
VALIDITY = 1.0
# Seconds between two looks at the number of tokens that the engine has computed.
PAUSE = 0.2

_PROMPT = (0,)
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class GenerationCheck:
    """Any token that the engine computes during the check proves that it works."""

    def __init__(
        self,
        client: EngineClient,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        pause: float = PAUSE,
    ) -> None:
        self._client = client
        self._clock = clock
        self._patience = patience
        self._pause = pause
        self._began = 0.0
        self._check: asyncio.Task[str] | None = None

    async def trouble(self) -> str:
        """Return why the engine generates nothing, or an empty text."""
        if self._check is None or (self._check.done() and self._clock() - self._began >= VALIDITY):
            self._began = self._clock()
            self._check = asyncio.create_task(self._generate(), name="pyllm-generation-check")
        return await asyncio.shield(self._check)  # Others may wait for it, too.

    async def _generate(self) -> str:
        own, others = asyncio.create_task(self._own_token()), asyncio.create_task(self._tokens_of_others())
        try:
            async with asyncio.timeout(self._patience):
                done, _ = await asyncio.wait((own, others), return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except TimeoutError:
            return f"the engine gave no token within {self._patience:g} s"
        except PyllmError as error:
            return str(error)
        finally:
            for task in (own, others):
                task.cancel()
            await asyncio.gather(own, others, return_exceptions=True)

    async def _own_token(self) -> str:
        if not self._client.model.can_generate:
            await self._client.embed(_PROMPT)
            return ""
        async with aclosing(self._client.generate(_PROMPT, _ONE_TOKEN)) as deltas:
            async for delta in deltas:
                if delta.tokens:
                    return ""
        return "the engine ended a request without a token"

    async def _tokens_of_others(self) -> str:
        """Wait for tokens of other requests, which may be ahead of the check's own in the queue."""
        before = await self._num_computed_tokens()
        while (now := await self._num_computed_tokens()) <= before:
            before = now  # It is lower once a core is lost.
            await asyncio.sleep(self._pause)
        return ""

    async def _num_computed_tokens(self) -> int:
        """The cores' own count, which has the requests of all API processes."""
        return (await self._client.stats())["num_computed_tokens"]
