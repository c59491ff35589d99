"""`LLM`: batches of prompts, for scripts and notebooks. Calls block; an `AsyncEngine` on a thread does the work."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from pyllm.client.embedding import ClassificationRequestOutput, EmbeddingRequestOutput, ScoringRequestOutput
from pyllm.engine.async_engine import AsyncEngine
from pyllm.engine.engine_args import EngineArgs
from pyllm.engine.prompt_progress import PromptProgress, UseTqdm
from pyllm.engine.prompts import Message, Prompt, Rendering, read_conversations, read_prompts
from pyllm.engine.together import together
from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.observability.metrics_snapshot import Metric
from pyllm.frontend.observability.summary import Summary
from pyllm.frontend.text.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from pyllm.frontend.text.model_tokenizer import ModelTokenizer
from pyllm.frontend.text.outputs import RequestOutput
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.owning_process import OwningProcess
from pyllm.parameters.arguments import as_list, instance, refuse, text
from pyllm.parameters.lora_request import LoRARequest
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams, with_priority
from pyllm.parameters.vllm_parameters import CALLS, PoolingParams, missing_method, refuse_other_values

Result = TypeVar("Result")
Each = TypeVar("Each")
Params = SamplingParams | Sequence[SamplingParams] | None
Priority = int | Sequence[int] | None
Scheduling = SchedulingParams | Sequence[SchedulingParams]
Lora = LoRARequest | Sequence[LoRARequest | None] | None
_CONTENT_FORMATS = {"auto", "string", "openai"}
# Seconds that the thread which drops an `LLM` waits for its processes to end.
DROP_PATIENCE = 5.0
# With the name of the list of sampling parameters, if each prompt has its own.
_Request = tuple[SamplingParams | None, SchedulingParams, LoRARequest | None, str]


class LLM:
    """Starts the engine when it is made; `close`, the end of a `with` block, or the end of the program ends it.

    Dropping it (`del llm`) ends the engine, too. It belongs to the process that made it, not to forks.

    Options and errors are those of `AsyncEngine`. By default there is no warm spare: a script can wait.
    """

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLM":
        """An engine of these settings, as in vLLM."""
        return cls(**instance("engine_args", engine_args, EngineArgs).options)

    def __init__(self, model: str | PathLike[str] | None = "", **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        self._engine = AsyncEngine(model, **{"warm_spares": False, **given})
        self._owner = OwningProcess("LLM")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="pyllm", daemon=True)
        self._thread.start()
        self._dropped = self._owner.when_dropped(self, _end_dropped, self._engine, self._loop, self._thread)
        try:
            self._engine.spawn()
            self._run(self._engine.start())
        except BaseException:
            self.close()
            raise

    if not TYPE_CHECKING:  # which is to find misspelt names

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_method("LLM", name)

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
        """The default parameters of `generate` and `chat`; see `AsyncEngine.get_default_sampling_params`."""
        return self._engine.get_default_sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Lora = None,
        priority: Priority = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> list[RequestOutput]:
        """Run the prompts together; return their finished outputs, in order.

        A prompt is a text, token ids, or a dict with one of these; other arguments are one for all, or one for each.
        `priority` is vLLM's argument for the field of `scheduling` with this name. `use_tqdm` shows a progress bar, or
        is called like `tqdm.tqdm` to make it. `lora_request` chooses an adapter, which is loaded if need be.
        `tokenization_kwargs` and `mm_processor_kwargs` are vLLM's, and may only be None.

        Raises:
            RequestError: one of the requests cannot run; none of them is left running.
            EngineDeadError: the engine was given up, as the core or its workers died too often.
        """
        given = {"tokenization_kwargs": tokenization_kwargs, "mm_processor_kwargs": mm_processor_kwargs}
        refuse_other_values(CALLS, given)
        batch = read_prompts(prompts)
        requests = _requests(len(batch), sampling_params, priority, scheduling, lora_request)
        with PromptProgress(len(batch), use_tqdm) as progress:
            return self._run(self._complete(batch, requests, progress))

    def chat(  # noqa: PLR0917 - in vLLM's order
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Lora = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> list[RequestOutput]:
        """Call `generate` for one conversation, or several, rendered by the model's chat template.

        `Rendering` explains the arguments for the template. Contents are texts, so `chat_template_content_format` has
        no effect. `tokenization_kwargs` and `mm_processor_kwargs` may only be None. An output's `prompt` is the
        rendered text.
        """
        given = {"tokenization_kwargs": tokenization_kwargs, "mm_processor_kwargs": mm_processor_kwargs}
        refuse_other_values(CALLS, given)
        if text("chat_template_content_format", chat_template_content_format) not in _CONTENT_FORMATS:
            refuse("chat_template_content_format", chat_template_content_format, "auto, string or openai")
        rendering = Rendering(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        batch = read_conversations(messages)
        requests = _requests(len(batch), sampling_params, priority, scheduling, lora_request)
        with PromptProgress(len(batch), use_tqdm) as progress:
            return self._run(self._complete_chats(batch, requests, rendering, progress))

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Lora = None,
        use_tqdm: UseTqdm = False,
    ) -> list[BeamSearchOutput]:
        """The best sequences of a beam search for each prompt; they run together. Raises the errors of `generate`."""
        instance("params", params, BeamSearchParams)
        batch = read_prompts(prompts)
        requests = _requests(len(batch), params.sampling(), None, DEFAULT_SCHEDULING, lora_request)
        with PromptProgress(len(batch), use_tqdm) as progress:
            found = self._run(self._complete(batch, requests, progress))
        decode = partial(self.tokenizer.decode, skip_special_tokens=params.skip_special_tokens)
        return [beam_search_output(each, params, decode) for each in found]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Lora = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
        dimensions: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The prompts' embeddings, in order: `outputs.embedding` of each. They run together; otherwise like `generate`.

        `dimensions`, also in `pooling_params` as in vLLM, shortens them, if the model was trained for this.
        `tokenization_kwargs` is vLLM's, and may only be None.

        Raises:
            DeadlineError: the `timeout` of a request passed.
        """
        pooling = _pooling(pooling_params, tokenization_kwargs)
        refuse_other_values(CALLS, {"use_activation": pooling.use_activation})
        dimensions = pooling.dimensions if dimensions is None else dimensions
        batch = read_prompts(prompts)
        requests = _requests(len(batch), None, priority, scheduling, lora_request)
        with PromptProgress(len(batch), use_tqdm) as progress:
            return self._run(self._embed(batch, requests, dimensions, progress))

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Lora = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: Priority = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> list[ClassificationRequestOutput]:
        """The scores of the prompts' classes, in order: `outputs.probs` of each; otherwise like `embed`."""
        pooling = _pooling(pooling_params, tokenization_kwargs)
        refuse_other_values(CALLS, {"dimensions": pooling.dimensions})
        batch = read_prompts(prompts)
        requests = _requests(len(batch), None, priority, scheduling, lora_request)
        with PromptProgress(len(batch), use_tqdm) as progress:
            return self._run(self._classify(batch, requests, pooling.use_activation is not False, progress))

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts: `outputs.score` of each. One `data_1` goes with all of `data_2`.

        The bar moves at the end. `truncate_prompt_tokens` is as for `AsyncEngine.score`.

        Raises:
            RequestError: as `AsyncEngine.score`.
        """
        pooling = _pooling(pooling_params, tokenization_kwargs)
        refuse_other_values(CALLS, {"dimensions": pooling.dimensions})
        with PromptProgress(1 if isinstance(data_2, str) else len(data_2), use_tqdm) as progress:
            scores = self._run(
                self._engine.score(
                    data_1,
                    data_2,
                    scheduling,
                    use_activation=pooling.use_activation is not False,
                    truncate_prompt_tokens=truncate_prompt_tokens,
                    lora_request=lora_request,
                )
            )
            for _ in scores:
                progress.add(0, 0)
        return scores

    def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, with the methods of transformers' tokenizers."""
        return self._engine.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Every metric of `GET /metrics`, as structs."""
        return self._run(self._engine.get_metrics())

    def get_summary(self, window: float = 60.0) -> Summary:
        """Throughput, latencies, hit rates and memory of the last `window` seconds."""
        return self._run(self._engine.get_summary(window))

    def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters."""
        return self._run(self._engine.stats())

    def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change live settings of the scheduler; see `EngineClient.reconfigure`."""
        return self._run(self._engine.reconfigure(**changes))

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache; see `AsyncEngine.reset_prefix_cache`."""
        return self._run(self._engine.reset_prefix_cache(reset_running_requests, reset_connector))

    def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Stop generating until `resume_generation`; see `AsyncEngine.pause_generation`."""
        self._run(
            self._engine.pause_generation(
                mode=mode, wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache
            )
        )

    def resume_generation(self) -> None:
        """End a pause; without one nothing changes."""
        self._run(self._engine.resume_generation())

    def is_paused(self) -> bool:
        """Whether the engine is paused."""
        return self._run(self._engine.is_paused())

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back until `wake_up`, as in vLLM; see `EngineClient.sleep`."""
        self._run(self._engine.sleep(level, mode))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory again; see `EngineClient.wake_up`."""
        self._run(self._engine.wake_up(tags))

    def is_sleeping(self) -> bool:
        """Whether the engine sleeps."""
        return self._run(self._engine.is_sleeping())

    def update_weights(self, weights: str | PathLike[str] | Mapping[str, Any], mode: str = "finish") -> str:
        """Compute with other weights: a path, or arrays by names; see `AsyncEngine.update_weights`."""
        return self._run(self._engine.update_weights(weights, mode))

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[()] = (), kwargs: None = None
    ) -> list[Any]:
        """Call a method of every rank by its name; see `AsyncEngine.collective_rpc`."""
        return self._run(self._engine.collective_rpc(method, timeout, args, kwargs))

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; see `AsyncEngine.add_lora`."""
        return self._run(self._engine.add_lora(lora_request))

    def remove_lora(self, lora_id: int) -> bool:
        """Unload the adapter with this `lora_int_id`. False: there is none."""
        return self._run(self._engine.remove_lora(lora_id))

    def list_loras(self) -> set[int]:
        """The numbers of the adapters that were loaded by a `LoRARequest`."""
        return self._run(self._engine.list_loras())

    def close(self) -> None:
        """End the engine; may be called twice. Has no effect in a fork."""
        if self._loop.is_closed() or not self._owner.is_this:
            return
        self._run(self._engine.close())
        self._dropped.detach()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _complete(
        self, prompts: Sequence[Prompt], requests: Sequence[_Request], progress: PromptProgress
    ) -> list[RequestOutput]:
        async def complete(index: int, prompt: Prompt, request: _Request) -> RequestOutput:
            params, scheduling, lora, name = request
            with RequestError.of_item(index, len(prompts), "prompts", name):
                output = await self._engine.complete(prompt, params, scheduling=scheduling, lora_request=lora)
            progress.add(len(output.prompt_token_ids), sum(len(one.token_ids) for one in output.outputs))
            return output

        return await together(map(complete, count(), prompts, requests))

    async def _embed(
        self,
        prompts: Sequence[Prompt],
        requests: Sequence[_Request],
        dimensions: int | None,
        progress: PromptProgress,
    ) -> list[EmbeddingRequestOutput]:
        async def embed(index: int, prompt: Prompt, request: _Request) -> EmbeddingRequestOutput:
            with RequestError.of_item(index, len(prompts), "prompts"):
                _, scheduling, lora, _ = request
                output = await self._engine.embed(
                    prompt, scheduling=scheduling, dimensions=dimensions, lora_request=lora
                )
            progress.add(len(output.prompt_token_ids), 0)
            return output

        return await together(map(embed, count(), prompts, requests))

    async def _classify(
        self,
        prompts: Sequence[Prompt],
        requests: Sequence[_Request],
        use_activation: bool,
        progress: PromptProgress,
    ) -> list[ClassificationRequestOutput]:
        async def classify(index: int, prompt: Prompt, request: _Request) -> ClassificationRequestOutput:
            with RequestError.of_item(index, len(prompts), "prompts"):
                _, scheduling, lora, _ = request
                output = await self._engine.classify(
                    prompt, scheduling=scheduling, use_activation=use_activation, lora_request=lora
                )
            progress.add(len(output.prompt_token_ids), 0)
            return output

        return await together(map(classify, count(), prompts, requests))

    async def _complete_chats(
        self,
        conversations: Sequence[Sequence[Message]],
        requests: Sequence[_Request],
        rendering: Rendering,
        progress: PromptProgress,
    ) -> list[RequestOutput]:
        prompts = []
        for index, messages in enumerate(conversations):
            with RequestError.of_item(index, len(conversations), "messages"):
                prompts.append(await self._engine.render_chat(messages, rendering))
        return await self._complete(prompts, requests, progress)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            self._owner.check()
            if self._loop.is_closed():
                raise EngineDeadError("the engine is closed")
        except EngineDeadError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in a notebook must end the requests, too.
            raise


def _pooling(given: PoolingParams | None, tokenization_kwargs: Mapping[str, Any] | None) -> PoolingParams:
    refuse_other_values(CALLS, {"tokenization_kwargs": tokenization_kwargs})
    return PoolingParams() if given is None else instance("pooling_params", given, PoolingParams)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end_dropped(engine: AsyncEngine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the engine of an `LLM` that nothing references any more; may be called in any thread."""
    if not thread.is_alive():
        return

    async def end() -> None:
        try:
            await engine.close()
        finally:
            loop.stop()

    asyncio.run_coroutine_threadsafe(end(), loop)
    # Wait, so that the memory is free for the next engine.
    if threading.current_thread() is not thread:
        thread.join(DROP_PATIENCE)


def _requests(
    number: int, params: Params, priority: Priority, scheduling: Scheduling, lora_request: Lora
) -> list[_Request]:
    """The parameters of each of `number` prompts."""
    columns = zip(
        _each("sampling_params", params, number),
        _each("scheduling", scheduling, number),
        _each("priority", priority, number),
        _each("lora_request", lora_request, number),
        strict=True,
    )
    name = "sampling_params" if isinstance(params, list | tuple) else ""
    requests = [(sampling, with_priority(one, first), lora, name) for sampling, one, first, lora in columns]
    for index, (sampling, _, _, _) in enumerate(requests):
        if sampling is not None:
            instance(f"{name}[{index}]" if name else "sampling_params", sampling, SamplingParams)
    return requests


def _each(name: str, given: Each | Sequence[Each], number: int) -> list[Each]:
    given = as_list(given)
    if not isinstance(given, list | tuple):
        return [cast(Each, given)] * number
    if len(given) != number:
        raise RequestError(f"{name} has {len(given)} for {number} prompts: give one for all, or one for each", name)
    return list(given)
