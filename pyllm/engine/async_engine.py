"""`AsyncEngine`: an engine inside an asyncio application. The model runs in its own processes.

Composes supervised processes, client and tokenizer.
"""

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.client.client import EngineClient
from pyllm.client.embedding import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from pyllm.client.pending_calls import Done
from pyllm.client.reports import Decision, SampleReport
from pyllm.client.submission import refuse_classes, refuse_embedding, refuse_prompt
from pyllm.config.option_reading import engine_config
from pyllm.config.server_settings import ServerConfig
from pyllm.engine.engine_args import EngineArgs
from pyllm.engine.engine_processes import LIMITS, EngineProcesses
from pyllm.engine.lora_requests import LoraRequests
from pyllm.engine.program_weights import ProgramWeights
from pyllm.engine.prompts import RENDERING, Message, ParsedPrompt, Prompt, Rendering, read_messages, read_prompt
from pyllm.engine.together import together
from pyllm.errors import EngineDeadError, PyllmError, RequestError
from pyllm.flags.keyword_settings import engine_keywords
from pyllm.frontend.chat.preprocessor import ChatPreprocessor
from pyllm.frontend.chat.reasoning_markers import ReasoningMarkers
from pyllm.frontend.chat.renderer import ChatRenderer, program_messages
from pyllm.frontend.observability.core_metrics import figures_of_cores
from pyllm.frontend.observability.measured_sink import MeasuredSink
from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.observability.metrics_snapshot import Metric, read_families
from pyllm.frontend.observability.summary import RecentRequests, Summary, check_window
from pyllm.frontend.scoring.pairs import PairEncoder, Pairs
from pyllm.frontend.scoring.scores import class_scores, pair_scorer
from pyllm.frontend.text.model_tokenizer import ModelTokenizer
from pyllm.frontend.text.outputs import OutputFold, RequestOutput, RequestProcessor
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.sampling_texts import resolve_texts_aside
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import truncation_from
from pyllm.launch.resolve import resolve_config
from pyllm.owning_process import OwningProcess
from pyllm.parameters.arguments import instance, integer, text, texts
from pyllm.parameters.lora_request import LoRARequest
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams, with_priority
from pyllm.parameters.vllm_parameters import CALLS, missing_method, refuse_other_values
from pyllm.supervision.process_samples import ProcessSampler, load_nvml


class _ParsedRequest(NamedTuple):
    """The checked arguments of a call."""

    name: str
    params: SamplingParams
    prompt: ParsedPrompt


class AsyncEngine:
    """Use it as `async with AsyncEngine(model, tensor_parallel_size=2) as engine:`, or call `start` and `close`.

    As in vLLM, the first request starts an engine that is not started yet. Dropping the engine ends its processes, too.
    It belongs to the process that made it, not to forks.

    `model` is a GGUF file or a Hugging Face folder, empty for the embedded one; the options are those of `pyllm serve`,
    with underscores, and vLLM's options as `pyllm serve` accepts them. None means the default.

    Raises:
        ConfigError: an option is unknown or cannot work.
    """

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "AsyncEngine":
        """An engine of these settings, as in vLLM."""
        return cls(**instance("engine_args", engine_args, EngineArgs).options)

    def __init__(self, model: str | PathLike[str] | None = "", **options: Any) -> None:
        self._config, self._checkpoint = resolve_config(engine_config(engine_keywords({"model": model, **options})))
        self.tokenizer = Tokenizer(self._checkpoint.tokenizer)
        self._chat_template = ChatTemplate.of(self._checkpoint.tokenizer)
        self._markers = ReasoningMarkers.shown_by(self._chat_template, self.tokenizer)
        give_up = weakref.WeakMethod(self._give_up)
        self._processes = EngineProcesses(self._config, self._checkpoint, lambda error: _call(give_up(), error))
        self._owner = OwningProcess("AsyncEngine")
        self._connections = contextlib.ExitStack()
        self._owner.when_dropped(self, self._processes.abandon, self._connections.close)
        self._client: EngineClient | None = None
        self._loss: PyllmError | None = None
        self._starts_itself = True
        self._starting: asyncio.Task[None] | None = None  # by the first request
        self._prompts: PromptEncoder | None = None
        self._pairs: PairEncoder | None = None
        self._renderer: ChatRenderer | None = None
        self._request_ids = itertools.count()
        self._processors: dict[str, RequestProcessor] = {}
        self._loras = LoraRequests(self._connected)
        self._weights = ProgramWeights()
        self._recent = RecentRequests()
        self._metrics: Metrics | None = None
        nvml = load_nvml() if self._config.device.device != "cpu" else None
        self._sampler = ProcessSampler(self._processes.pids, nvml=nvml, restarts=self._processes.restarts)

    if not TYPE_CHECKING:  # which is to find misspelt names

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_method("AsyncEngine", name)

    async def __aenter__(self) -> "AsyncEngine":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any: the sampling defaults of the model's files, or of the options.

        As in vLLM, `max_tokens` is 16 if they do not set it.
        """
        return SamplingParams(**self._checkpoint.sampling.given())

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The sampling defaults that the model's files or the options set, and no others."""
        return self._checkpoint.sampling

    def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, with the methods of transformers' tokenizers."""
        return ModelTokenizer(self.tokenizer, self._checkpoint.tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model accepts messages; known before it is loaded."""
        return self._chat_template is not None

    @property
    def model_name(self) -> str:
        """The name of the model in its files."""
        return self._checkpoint.name

    def chat_preprocessor(self, server: ServerConfig = LIMITS) -> ChatPreprocessor:
        """A preprocessor, which renders conversations and parses answers, with the parsers of `server`.

        Raises:
            ConfigError: there is no such parser.
            EngineDeadError: the engine is not started.
        """
        return ChatPreprocessor(self._encoder(), self.tokenizer, self._chat_template, server)

    def spawn(self) -> None:
        """Start the engine's processes without waiting for them; `start` does this if you have not.

        Call it from the main thread if you can: the kernel ends the processes when the thread that started them ends,
        so that a killed application leaves no process behind.
        """
        self._owner.check()
        self._processes.spawn()

    async def start(self) -> None:
        """Start the engine's processes and wait until the model is loaded.

        Raises:
            StartError: the engine did not become ready; the message has the stage it was in.
            EngineDeadError: a process was lost for good meanwhile.
            PyllmError: the engine is started already, and not closed.
        """
        self._owner.check()
        if self._processes.is_started:
            raise PyllmError("this engine is started already: `start` is for a new one, or for one that was closed")
        self._loss = None
        try:
            await self._processes.start(self._connect)
        except BaseException:
            await self.close()
            raise

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        prompt_text: None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's output so far, after every change; the last one is `finished`. Leaving early aborts it.

        `prompt` is a text, token ids, or a dict with one of these. `output_kind` and `stream_interval` of the
        parameters choose other outputs. `priority` and `data_parallel_rank` are vLLM's arguments for the fields of
        `scheduling` with these names; `lora_request` chooses an adapter, which is loaded if need be. The other
        arguments from `prompt_text` on may only have their defaults.

        Raises:
            RequestError: the request cannot run.
            EngineDeadError: the engine was given up, as the core or its workers died too often.
        """
        given: dict[str, object] = {"prompt_text": prompt_text, "trace_headers": trace_headers}
        given["tokenization_kwargs"] = tokenization_kwargs
        refuse_other_values(CALLS, given)
        if data_parallel_rank is not None:
            instance("scheduling", scheduling, SchedulingParams)
            scheduling = msgspec.structs.replace(scheduling, data_parallel_rank=data_parallel_rank)
        request = self._read(prompt, sampling_params, request_id, priority, scheduling)
        async with self._running(request, lora_request) as (fold, changed):
            finished = False
            while not finished:
                await changed.wait()
                changed.clear()
                if fold.is_due:
                    output = fold.take()
                    finished = output.finished
                    yield output

    async def complete(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        lora_request: LoRARequest | None = None,
    ) -> RequestOutput:
        """Return only the finished output, whatever its `output_kind`; otherwise like `generate`."""
        request = self._read(prompt, sampling_params, request_id, priority, scheduling)
        async with self._running(request, lora_request) as (fold, changed):
            while not fold.finished:
                await changed.wait()
                changed.clear()
            return fold.snapshot()

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        rendering: Rendering = RENDERING,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Call `generate` for a conversation, rendered by the model's chat template, or by the options of `rendering`.

        Raises:
            RequestError: the model has no template, or the template refuses the messages; otherwise like `generate`.
        """
        prompt = await self.render_chat(messages, rendering)
        outputs = self.generate(prompt, sampling_params, request_id, priority, scheduling, lora_request=lora_request)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def render_chat(self, messages: Sequence[Message], rendering: Rendering = RENDERING) -> Prompt:
        """A conversation as a prompt for `generate`, with its text and its token ids; raises the errors of `chat`."""
        messages = read_messages(messages)
        instance("rendering", rendering, Rendering)
        await self._start_once()
        encoder = self._encoder()
        renderer = self._renderer
        assert renderer is not None
        text, _ = await renderer.render(
            program_messages(messages),
            rendering.tools,
            await renderer.template_of(rendering.chat_template),
            add_generation_prompt=rendering.add_generation_prompt,
            continue_final_message=rendering.continue_final_message,
            variables=rendering.chat_template_kwargs or {},
        )
        # `generate` checks the length, as `truncate_prompt_tokens` may shorten the prompt.
        (tokens,) = await encoder.encode([text], add_special_tokens=False, too_long=None)
        return {"prompt": text, "prompt_token_ids": tokens}

    async def embed(
        self,
        prompt: Prompt,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        dimensions: int | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> EmbeddingRequestOutput:
        """A prompt's embedding, of length 1: the last or first token's final hidden state, or the mean of all.

        The model's files choose which. `dimensions` shortens it, if the model was trained for this.

        Raises:
            DeadlineError: the `timeout` of `scheduling` passed.
            RequestError, EngineDeadError: like `generate`; the prompt may fill the context.
        """
        await self._start_once()
        client = self._connected()
        refuse_embedding(client.model)
        read = read_prompt(prompt, with_priority(scheduling, priority))
        if dimensions is not None:
            dimensions = integer("dimensions", dimensions)
        (tokens,) = await self._encoder().encode_inputs([read.content])
        scheduling = await self._loras.chosen(read.scheduling, lora_request)
        embedding = await client.embed(tokens, scheduling, dimensions)
        return EmbeddingRequestOutput(
            self._name(), EmbeddingOutput(embedding.values.tolist()), [*tokens], embedding.cached_tokens
        )

    async def classify(
        self,
        prompt: Prompt,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        use_activation: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> ClassificationRequestOutput:
        """The scores of a prompt's classes, in the order of `ModelInfo.labels`; raises as `embed`.

        Without `use_activation` they are the model's logits.

        Raises:
            RequestError: the model is no classifier.
        """
        await self._start_once()
        client = self._connected()
        refuse_classes(client.model)
        read = read_prompt(prompt, with_priority(scheduling, priority))
        (tokens,) = await self._encoder().encode_inputs([read.content])
        found = await client.embed(tokens, await self._loras.chosen(read.scheduling, lora_request))
        scores = class_scores(found.values, client.model.class_activation if use_activation else "identity")
        return ClassificationRequestOutput(self._name(), ClassificationOutput(scores), [*tokens], found.cached_tokens)

    async def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        use_activation: bool = True,
        truncate_prompt_tokens: int | None = None,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts by a reranker or by embeddings: one text with each of several, or lists of equal length.

        Without `use_activation` the scores of a reranker are its logits. `truncate_prompt_tokens` is the most that a
        pair may have, -1 the model's context; without it longer ones are refused.

        Raises:
            RequestError: the numbers of texts do not fit, or the model has several classes. Else as `embed`.
        """
        await self._start_once()
        client = self._connected()
        assert self._pairs is not None
        pairs = Pairs(_listed("data_1", data_1), _listed("data_2", data_2))
        scorer = pair_scorer(client.model, self._pairs, pairs, use_activation)
        if truncate_prompt_tokens is not None:
            truncate_prompt_tokens = integer("truncate_prompt_tokens", truncate_prompt_tokens)
        prompts = await scorer.prompts(truncation_from(truncate_prompt_tokens, None, 0, client.model))
        scheduling = await self._loras.chosen(scheduling, lora_request)

        async def score(index: int, prompt: Sequence[int]) -> None:
            scorer.take(index, (await client.embed(prompt, scheduling)).values)

        await together(map(score, itertools.count(), prompts))
        return [ScoringRequestOutput(self._name(), ScoringOutput(score)) for score in scorer.scores]

    def _name(self) -> str:
        return f"request-{next(self._request_ids)}"

    def abort(self, request_id: str | Sequence[str]) -> Done:
        """End running requests of `generate`: their last output has the finish reason `abort`. Unknown ids are ignored.

        They have ended when this returns; as in vLLM, the result can be awaited.
        """
        for name in [request_id] if isinstance(request_id, str) else texts("request_id", request_id):
            if (processor := self._processors.get(name)) is not None:
                processor.abort()
        return Done()

    async def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters."""
        return await self._connected().stats()

    async def get_metrics(self) -> list[Metric]:
        """Every metric of `GET /metrics`, as structs, in the form of vLLM's `LLM.get_metrics`."""
        cores = await figures_of_cores(self._connected())
        samples = (await asyncio.to_thread(self._sampler.sample)).processes
        metrics, condition = self._metrics, self._connected().condition()
        assert metrics is not None
        shown = metrics.shown(cores, metrics.counted(), condition, samples)
        return read_families(shown.collect())

    async def get_summary(self, window: float = 60.0) -> Summary:
        """Throughput, latencies, hit rates and memory of the last `window` seconds.

        Raises:
            RequestError: `window` is no number above 0.
        """
        window = check_window(window)
        stats, samples = await self.stats(), (await asyncio.to_thread(self._sampler.sample)).processes
        devices = [sample.device_bytes for sample in samples if sample.device_bytes is not None]
        memory = sum(sample.memory_bytes for sample in samples)
        return self._recent.summary(window, stats, memory, sum(devices) if devices else None)

    async def explain(self, request_id: str) -> list[SampleReport]:
        """The state of each sample of a running request, with its reason.

        Raises:
            RequestError: there is no request with this id.
        """
        processor = self._processors.get(text("request_id", request_id))
        if processor is None:
            raise RequestError(f"request {request_id!r} is not running", "request_id")
        return await processor.explain()

    async def decisions(self, limit: int = 100) -> list[Decision]:
        """The scheduler's last decisions, oldest first."""
        return await self._connected().decisions(integer("limit", limit))

    async def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change live settings of the scheduler; see `EngineClient.reconfigure`."""
        return await self._connected().reconfigure(**changes)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache; running sequences keep their blocks. Returns True, as vLLM does where it worked.

        The arguments are vLLM's. `reset_connector` has no effect: KV stores name blocks by the version of the weights.

        Raises:
            RequestError: running requests are to lose their blocks, too.
        """
        del reset_connector
        refuse_other_values(CALLS, {"reset_running_requests": reset_running_requests})
        await self._connected().reset_prefix_cache()
        return True

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Stop generating until `resume_generation`; new requests wait. See `EngineClient.pause_generation`."""
        await self._start_once()
        await self._connected().pause_generation(
            text("mode", mode), wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache
        )

    async def resume_generation(self) -> None:
        """End a pause; without one nothing changes."""
        await self._connected().resume_generation()

    async def is_paused(self) -> bool:
        """Whether the engine is paused."""
        return await self._connected().is_paused()

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back until `wake_up`, as in vLLM; see `EngineClient.sleep`."""
        await self._start_once()
        await self._connected().sleep(integer("level", level), text("mode", mode))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory again; see `EngineClient.wake_up`."""
        await self._connected().wake_up(tags)

    async def is_sleeping(self) -> bool:
        """Whether the engine sleeps."""
        return await self._connected().is_sleeping()

    async def update_weights(self, weights: str | PathLike[str] | Mapping[str, Any], mode: str = "finish") -> str:
        """Compute with another version of the model's weights; returns the version, a digest of them.

        `weights` is a folder or file of the same model, or a repository of the hub; or arrays of numpy or tensors of
        torch (float32, float16, bfloat16) by the names of tensors in the model's files: they are copied to memory that
        the ranks of this machine share, and other tensors stay. `mode` is for requests that have begun:
        "finish", "continue" or "abort"; see `EngineClient.update_weights`.

        Raises:
            RequestError: they cannot be used, and the reason; the weights are those before.
        """
        await self._start_once()
        return await self._weights.update(self._connected(), weights, text("mode", mode))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as in vLLM
        args: tuple[()] = (),
        kwargs: None = None,
    ) -> list[Any]:
        """Call a method of every rank by its name, as in vLLM; see `EngineClient.collective_rpc`.

        `timeout` has no effect, and methods take no arguments.

        Raises:
            RequestError: `method` is no name of such a method.
        """
        del timeout
        if args or kwargs:
            raise RequestError(f"{method!r:.80}: methods of ranks take no arguments here", "args")
        await self._start_once()
        return await self._connected().collective_rpc(text("method", method))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter, as the first request that names it does. False: it was there already.

        Raises:
            RequestError: it cannot be used, and the reason.
        """
        await self._start_once()
        return await self._loras.add(lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Unload the adapter with this `lora_int_id`; requests that have begun end with it. False: there is none."""
        return await self._loras.remove(lora_id)

    async def list_loras(self) -> set[int]:
        """The numbers of the adapters that were loaded by a `LoRARequest`."""
        return self._loras.numbers

    async def close(self) -> None:
        """Abort running requests and end the core; may be called twice, and on an engine that never became ready."""
        if not self._owner.is_this:  # Another process owns them.
            return
        self._disconnect()
        await self._processes.close()
        self._weights.close()

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the engine without waiting, as in vLLM; `timeout` has no effect."""
        del timeout
        if self._owner.is_this:
            self._disconnect()
            self._processes.abandon(lambda: None)

    @property
    def is_running(self) -> bool:
        """Whether the engine is started, and not given up."""
        return self._client is not None and not self.errored

    @property
    def errored(self) -> bool:
        """Whether the engine was given up, as the core or its workers died too often."""
        return self._loss is not None

    async def check_health(self) -> None:
        """Return if the engine answers; raise EngineDeadError if it does not run, or was given up."""
        await self.stats()

    async def _start_once(self) -> None:
        """Start the engine if it is not started; concurrent calls wait for the same start."""
        self._owner.check()
        if self._starts_itself and self._starting is None and not self._processes.is_started:
            self._starting = asyncio.create_task(self.start())
        if (starting := self._starting) is not None:
            await asyncio.wait({starting})
            if not starting.cancelled():
                starting.result()

    def _disconnect(self) -> None:
        self._starts_itself, self._client = False, None
        starting, self._starting = self._starting, None
        if starting is not None and starting is not asyncio.current_task():
            starting.cancel()
        self._connections.close()

    def _read(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int | None,
        scheduling: SchedulingParams,
    ) -> _ParsedRequest:
        if params is None:
            params = self.get_default_sampling_params()
        params = copy(instance("sampling_params", params, SamplingParams))
        params.validate()
        name = self._name() if request_id is None else text("request_id", request_id)
        return _ParsedRequest(name, params, read_prompt(prompt, with_priority(scheduling, priority)))

    @contextlib.asynccontextmanager
    async def _running(
        self, request: _ParsedRequest, lora_request: LoRARequest | None
    ) -> AsyncIterator[tuple[OutputFold, asyncio.Event]]:
        name, params, prompt = request
        await self._start_once()
        client, encoder = self._connected(), self._encoder()
        truncation = truncation_from(params.truncate_prompt_tokens, None, params.max_tokens or 1, client.model)
        too_long = refuse_prompt if truncation is None else None
        (tokens,) = await encoder.encode([prompt.content], too_long=too_long)
        truncated = tokens if truncation is None else truncation.kept(tokens)
        self._markers.resolve_plain(params)
        await resolve_texts_aside(params, self.tokenizer)
        scheduling = await self._loras.chosen(prompt.scheduling, lora_request)
        if name in self._processors:
            raise RequestError(f"request {name!r} is running already; give each request an id of its own", "request_id")
        changed = asyncio.Event()
        fold = OutputFold(name, prompt.text, list(truncated), params, changed.set)
        assert self._metrics is not None, "it is there from the connection on"
        sink = MeasuredSink(fold, self._metrics.request(len(truncated), params), self._recent)
        processor = RequestProcessor(client, self.tokenizer, truncated, params, sink)
        processor.start(msgspec.structs.replace(scheduling, name=name))
        self._processors[name] = processor
        try:
            yield fold, changed
        finally:
            processor.drop()
            del self._processors[name]

    async def _connect(self, addresses: list[str]) -> None:
        placement = self._config.parallel.data_parallel_placement if len(addresses) > 1 else "failover"
        self._client = await EngineClient.connect(addresses, placement=placement)
        self._connections.callback(self._client.close)
        self._client.draw_seeds_from(self._config.model.seed)
        model = self._client.model
        self._metrics = Metrics(
            model.name, model, connection=self._client.counts, max_loras=self._config.lora.num_slots
        )
        self._prompts = PromptEncoder(self.tokenizer, model, self._metrics.encoding)
        self._pairs = PairEncoder(self._prompts, self.tokenizer, model, self._chat_template)
        self._renderer = await asyncio.to_thread(ChatRenderer, self._prompts, self._chat_template)

    def _give_up(self, error: PyllmError) -> None:
        self._loss = error
        if self._client is not None:
            self._client.give_up(error)

    def _encoder(self) -> PromptEncoder:
        self._connected()
        assert self._prompts is not None
        return self._prompts

    def _connected(self) -> EngineClient:
        self._owner.check()
        if self._client is None:
            raise EngineDeadError("the engine is not running: use `async with`, or await start()")
        return self._client


def _call(give_up: Callable[[PyllmError], None] | None, error: PyllmError) -> None:
    if give_up is not None:
        give_up(error)


def _listed(name: str, value: str | Sequence[str]) -> Sequence[str]:
    return texts(name, [value] if isinstance(value, str) else value)


AsyncLLMEngine = AsyncEngine  # vLLM's name
