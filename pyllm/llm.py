"""`LLM`: batches of prompts, for scripts and notebooks. Blocks; an `AsyncEngine` on a thread does the work."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from pyllm.async_engine import AsyncEngine, Message, Prompt
from pyllm.client.embedding import EmbeddingRequestOutput
from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.text.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from pyllm.frontend.text.outputs import RequestOutput
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams

Result = TypeVar("Result")
Each = TypeVar("Each")
Params = SamplingParams | Sequence[SamplingParams] | None
Priority = int | Sequence[int] | None
Scheduling = SchedulingParams | Sequence[SchedulingParams]
_Request = tuple[SamplingParams | None, SchedulingParams]


class LLM:
    """Starts the engine when it is made; `close`, the `with` block's end, or the end of the program ends it.

    Options and errors are those of `AsyncEngine`. There is no warm spare unless asked for: a script can wait.
    """

    def __init__(self, model: str = "", **options: Any) -> None:
        self._engine = AsyncEngine(model, **{"warm_spares": False, **options})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyllm", daemon=True)
        self._thread.start()
        try:
            self._engine.spawn()
            self._run(self._engine.start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` and `chat` take without parameters; see `AsyncEngine.get_default_sampling_params`."""
        return self._engine.get_default_sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> list[RequestOutput]:
        """The finished outputs, in the order of the prompts, which run together.

        A prompt is a text or token ids; the others are one for all, or one for each. `priority`, vLLM's argument, is
        that of `scheduling` under its own name.

        Raises:
            RequestError: one of the requests cannot run; none of them is left running.
            EngineDeadError: the engine was given up: the core or its workers died too often.
        """
        batch = _batch(prompts)
        return self._run(self._complete(batch, _requests(len(batch), params, priority, scheduling)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> list[RequestOutput]:
        """`generate` for one conversation, or several, rendered by the model's chat template."""
        batch: Sequence[Any] = [messages] if messages and isinstance(messages[0], dict) else messages
        return self._run(self._complete_chats(batch, _requests(len(batch), params, priority, scheduling)))

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The best sequences that a beam search finds for each prompt; they run together. Raises as `generate` does."""
        batch = _batch(prompts)
        requests = _requests(len(batch), params.sampling(), None, DEFAULT_SCHEDULING)
        found = self._run(self._complete(batch, requests))
        decode = partial(self.tokenizer.decode, skip_special_tokens=False)
        return [beam_search_output(each, params, decode) for each in found]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
        dimensions: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The prompts' embeddings, in their order: `outputs.embedding` of each. They run together; else as `generate`.

        `dimensions` cuts them, of a model that was trained for this.

        Raises:
            DeadlineError: the `timeout` of one passed.
        """
        batch = _batch(prompts)
        return self._run(self._embed(batch, _requests(len(batch), None, priority, scheduling), dimensions))

    def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters."""
        return self._run(self._engine.stats())

    def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change settings of the scheduler while it runs; see `EngineClient.reconfigure`."""
        return self._run(self._engine.reconfigure(**changes))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; what runs keeps its blocks."""
        self._run(self._engine.reset_prefix_cache())

    def close(self) -> None:
        """End the engine; may be called twice."""
        if self._loop.is_closed():
            return
        self._run(self._engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _complete(self, prompts: Sequence[Prompt], requests: Sequence[_Request]) -> list[RequestOutput]:
        return await _together(
            self._engine.complete(prompt, params, scheduling=scheduling)
            for prompt, (params, scheduling) in zip(prompts, requests, strict=True)
        )

    async def _embed(
        self, prompts: Sequence[Prompt], requests: Sequence[_Request], dimensions: int | None
    ) -> list[EmbeddingRequestOutput]:
        return await _together(
            self._engine.embed(prompt, scheduling=scheduling, dimensions=dimensions)
            for prompt, (_, scheduling) in zip(prompts, requests, strict=True)
        )

    async def _complete_chats(
        self, conversations: Sequence[Sequence[Message]], requests: Sequence[_Request]
    ) -> list[RequestOutput]:
        return await self._complete([await self._engine.encode_chat(messages) for messages in conversations], requests)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop.is_closed():
            work.close()
            raise EngineDeadError("the engine is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except BaseException:
            future.cancel()  # Ctrl-C in a notebook must end the requests, too.
            raise


async def _together(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """What they give, in their order; when one fails, the others end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


def _batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _requests(number: int, params: Params, priority: Priority, scheduling: Scheduling) -> list[_Request]:
    """What each of so many prompts asks for."""
    columns = zip(
        _each(params, number, "sampling params"),
        _each(scheduling, number, "scheduling params"),
        _each(priority, number, "priorities"),
        strict=True,
    )
    return [(sampling, one.with_priority(first)) for sampling, one, first in columns]


def _each(given: Each | Sequence[Each], number: int, what: str) -> list[Each]:
    if not isinstance(given, Sequence):
        return [given] * number
    if len(given) != number:
        raise RequestError(f"{len(given)} {what} for {number} prompts: give one for all, or one for each")
    return list(given)
