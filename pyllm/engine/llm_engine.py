"""`LLMEngine`: the whole engine in this process, for programs that run the step loop themselves.

It has the usual core, client and detokenizer, with an in-memory endpoint; the model runs in this process, too.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.prompt_tokens import known_tokens
from pyllm.config.engine_settings import ParallelConfig
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.composition import compose
from pyllm.core.executors.inline import InlineExecutor
from pyllm.core.startup import start
from pyllm.engine.engine_args import EngineArgs
from pyllm.engine.lora_requests import LoraRequests
from pyllm.engine.program_weights import ProgramWeights
from pyllm.engine.prompts import Prompt, read_prompt
from pyllm.errors import ConfigError, EngineDeadError, RequestError
from pyllm.flags.keyword_settings import engine_keywords
from pyllm.frontend.chat.reasoning_markers import ReasoningMarkers
from pyllm.frontend.text.model_tokenizer import ModelTokenizer
from pyllm.frontend.text.outputs import OutputFold, RequestOutput, RequestProcessor
from pyllm.frontend.text.sampling_texts import resolve_texts
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import truncation_from
from pyllm.launch import entrypoints
from pyllm.launch.resolve import resolve_config
from pyllm.owning_process import OwningProcess
from pyllm.parameters.arguments import instance, integer, text, texts
from pyllm.parameters.lora_request import LoRARequest
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams, with_priority
from pyllm.parameters.vllm_parameters import CALLS, missing_method, refuse_other_values
from pyllm.wire.ipc import MemoryEndpoint, MessageHandler
from pyllm.wire.messages import ClientMessage, CoreMessage

_IDENTITY = b"in process"
_IDLE_STEP = 0.002  # seconds between two steps that have nothing to do

Result = TypeVar("Result")


class LLMEngine:
    """Call `add_request`, then `step` until `has_unfinished_requests` is false; not inside a running event loop.

    Options are those of `AsyncEngine`, except for the number of ranks, which is one. Dropping it frees the model, like
    `close`. It belongs to the process that made it, not to forks.

    Raises:
        ConfigError: an option is unknown or cannot work.
        StartError: the model could not be loaded.
    """

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLMEngine":
        """An engine of these settings, as in vLLM."""
        return cls(**instance("engine_args", engine_args, EngineArgs).options)

    def __init__(self, model: str | PathLike[str] | None = "", **options: Any) -> None:
        config = engine_config({"distributed_executor_backend": "uni", **engine_keywords({"model": model, **options})})
        if config.parallel.data_parallel_size > 1:
            raise ConfigError(
                f"LLMEngine is one core, in this process, not data_parallel_size "
                f"{config.parallel.data_parallel_size}: use AsyncEngine or LLM"
            )
        if config.parallel != ParallelConfig(distributed_executor_backend="uni"):
            raise ConfigError("LLMEngine runs one rank, in this process: for more ranks or processes use LLM")
        if config.kv_events.kv_events_endpoint:
            raise ConfigError("LLMEngine steps when it is called, and publishes no events: use AsyncEngine or LLM")
        engine, checkpoint = resolve_config(config)
        core_config = CoreConfig(
            engine=engine, checkpoint=checkpoint, bind="", socket_folder="", ready_timeout=0.0, shutdown_timeout=0.0
        )
        self.tokenizer = Tokenizer(checkpoint.tokenizer)
        self._tokenizer_files = checkpoint.tokenizer
        self._markers = ReasoningMarkers.shown_by(ChatTemplate.of(checkpoint.tokenizer), self.tokenizer)
        self._default_params = SamplingParams(**checkpoint.sampling.given())
        self._executor = entrypoints.inline_executor(core_config)
        self._weights = ProgramWeights()
        self._requests: dict[str, tuple[RequestProcessor, OutputFold]] = {}
        self._changed: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._at_close = contextlib.ExitStack()
        self._at_close.callback(self._weights.close)
        self._owner = OwningProcess("LLMEngine")
        self._dropped = self._owner.when_dropped(self, _close_aside, self._loop, self._at_close, self._executor)
        try:
            self._loop.run_until_complete(self._start(core_config))
        except BaseException:
            self.close()
            raise

    if not TYPE_CHECKING:  # which is to find misspelt names

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_method("LLMEngine", name)

    def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, with the methods of transformers' tokenizers."""
        return ModelTokenizer(self.tokenizer, self._tokenizer_files)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a request; `step` returns its outputs. `priority` is vLLM's argument for that field of `scheduling`.

        `lora_request` chooses an adapter, which is loaded if need be. The arguments after it are vLLM's, and may only
        have their defaults.

        Raises:
            RequestError: the request cannot run, or the id is in use.
        """
        self._check_open()
        refuse_other_values(CALLS, {"tokenization_kwargs": tokenization_kwargs, "trace_headers": trace_headers})
        if text("request_id", request_id) in self._requests:
            raise RequestError(f"request {request_id!r} is running already", "request_id")
        params = copy(instance("params", self._default_params if params is None else params, SamplingParams))
        params.validate()
        self._markers.resolve_plain(params)
        resolve_texts(params, self.tokenizer)
        read = read_prompt(prompt, with_priority(scheduling, priority))
        content, model = read.content, self._client.model
        tokens = known_tokens(self.tokenizer.encode(content) if isinstance(content, str) else content, model.vocab_size)
        truncation = truncation_from(params.truncate_prompt_tokens, None, params.max_tokens or 1, model)
        truncated = list(tokens if truncation is None else truncation.kept(tokens))
        scheduling = self._loop.run_until_complete(self._loras.chosen(read.scheduling, lora_request))
        changed = self._changed  # The request and its callback must not reference this object.
        fold = OutputFold(request_id, read.text, truncated, params, lambda: changed.add(request_id))
        processor = RequestProcessor(self._client, self.tokenizer, truncated, params, fold)
        processor.start(msgspec.structs.replace(scheduling, name=request_id))
        self._requests[request_id] = processor, fold
        if fold.failure is not None:
            del self._requests[request_id]
            raise fold.failure

    def step(self) -> list[RequestOutput]:
        """Compute one step; return the requests that changed, each with all of its output so far.

        The parameters' `output_kind` and `stream_interval` choose other outputs.

        Raises:
            PyllmError: a request has failed and ended; the next call returns the outputs of the others.
            EngineDeadError: the model failed.
        """
        self._check_open()
        self._loop.run_until_complete(self._core.step())
        for request_id in sorted(self._changed & self._requests.keys()):
            failure = self._requests[request_id][1].failure
            if failure is not None:
                del self._requests[request_id]
                raise failure
        outputs = []
        for request_id in sorted(self._changed & self._requests.keys()):
            _, fold = self._requests[request_id]
            if fold.finished:
                del self._requests[request_id]
            if fold.is_due:
                outputs.append(fold.take())
        self._changed.clear()
        return outputs

    def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests; `step` returns no more output for them. Unknown ids are ignored."""
        for name in [request_id] if isinstance(request_id, str) else texts("request_id", request_id):
            processor, _ = self._requests.pop(name, (None, None))
            if processor is not None:
                processor.drop()

    abort_request = abort  # vLLM's name

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that have not ended."""
        return len(self._requests)

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters."""
        return self._core.stats()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache; see `AsyncEngine.reset_prefix_cache`."""
        del reset_connector
        refuse_other_values(CALLS, {"reset_running_requests": reset_running_requests})
        self._run(self._client.reset_prefix_cache())
        return True

    def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Stop generating until `resume_generation`; see `EngineClient.pause_generation`.

        With "wait" it steps until the requests that have begun have ended. During a pause `step` returns nothing.
        """
        self._run_with_steps(
            self._client.pause_generation(
                text("mode", mode), wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache
            )
        )

    def resume_generation(self) -> None:
        """End a pause; without one nothing changes."""
        self._run(self._client.resume_generation())

    def is_paused(self) -> bool:
        """Whether the engine is paused."""
        return self._run(self._client.is_paused())

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back until `wake_up`, as in vLLM; see `EngineClient.sleep`."""
        self._run_with_steps(self._client.sleep(integer("level", level), text("mode", mode)))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory again; see `EngineClient.wake_up`."""
        self._run(self._client.wake_up(tags))

    def is_sleeping(self) -> bool:
        """Whether the engine sleeps."""
        return self._run(self._client.is_sleeping())

    def update_weights(self, weights: str | PathLike[str] | Mapping[str, Any], mode: str = "finish") -> str:
        """Compute with other weights; see `AsyncEngine.update_weights`. It steps until the engine has switched."""
        return self._run_with_steps(self._weights.update(self._client, weights, text("mode", mode)))

    def collective_rpc(self, method: str) -> list[Any]:
        """Call a method of the rank by its name; see `EngineClient.collective_rpc`."""
        return self._run(self._client.collective_rpc(text("method", method)))

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; see `AsyncEngine.add_lora`."""
        return self._run(self._loras.add(lora_request))

    def remove_lora(self, lora_id: int) -> bool:
        """Unload the adapter with this `lora_int_id`. False: there is none."""
        return self._run(self._loras.remove(lora_id))

    def list_loras(self) -> set[int]:
        """The numbers of the adapters that were loaded by a `LoRARequest`."""
        self._check_open()
        return self._loras.numbers

    def close(self) -> None:
        """Free the model; may be called twice. Has no effect in a fork."""
        if self._owner.is_this:
            self._dropped.detach()
            _close(self._loop, self._at_close, self._executor)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a call of the client."""
        try:
            self._check_open()
        except EngineDeadError:
            work.close()
            raise
        return self._loop.run_until_complete(work)

    def _run_with_steps(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a call that waits for requests; the next `step` returns the outputs of the steps meanwhile."""
        return self._run(self._stepping(work))

    async def _stepping(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.create_task(work)
        try:
            while not task.done():
                has_stepped = await self._core.step()
                await asyncio.wait({task}, timeout=0 if has_stepped else _IDLE_STEP)
        finally:
            task.cancel()
        return await task

    def _check_open(self) -> None:
        self._owner.check()
        if self._loop.is_closed():
            raise EngineDeadError("the engine is closed")

    async def _start(self, config: CoreConfig) -> None:
        setup = await start(config, self._executor)
        to_client: MemoryEndpoint[ClientMessage, CoreMessage] = MemoryEndpoint()
        to_core: MemoryEndpoint[CoreMessage, ClientMessage] = MemoryEndpoint()
        core, loop = compose(setup, to_client), self._loop
        self._core = core
        # Callbacks at the end must not reference this object, as it would then never be dropped.
        self._at_close.callback(core.close)
        self._at_close.callback(lambda: loop.run_until_complete(core.finish_transfers()))  # comes first

        def connect(
            on_message: MessageHandler[CoreMessage], *handlers: object
        ) -> MemoryEndpoint[CoreMessage, ClientMessage]:
            del handlers  # In one process no message is malformed and no peer disconnects.
            to_client.connect(lambda identity, message: on_message(b"", message))
            to_core.connect(lambda identity, message: core.receive(_IDENTITY, message))
            return to_core

        self._client = EngineClient(connect, heartbeats=False)
        self._client.draw_seeds_from(config.engine.model.seed)
        await self._client.start()
        client = self._client  # The callback must not reference this object.
        self._loras = LoraRequests(lambda: client)


def _close(loop: asyncio.AbstractEventLoop, at_close: contextlib.ExitStack, executor: InlineExecutor) -> None:
    if not loop.is_closed():
        at_close.close()
        loop.run_until_complete(executor.close())
        loop.close()


def _close_aside(loop: asyncio.AbstractEventLoop, at_close: contextlib.ExitStack, executor: InlineExecutor) -> None:
    """Close on another thread, as an event loop may run in this one, which allows no second loop."""
    closing = threading.Thread(target=_close, args=(loop, at_close, executor), name="close LLMEngine")
    closing.start()
    closing.join()
