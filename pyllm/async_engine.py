"""`AsyncEngine`: an engine inside an asyncio application. The model runs in processes of its own.

Composes supervised processes, client and tokenizer; decides nothing itself.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from copy import copy
from types import TracebackType
from typing import Any

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.embedding import EmbeddingOutput, EmbeddingRequestOutput
from pyllm.client.prompt_tokens import PromptTokens
from pyllm.client.reports import Decision, SampleReport
from pyllm.client.submission import refuse_input
from pyllm.config.options import ServerConfig, engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.errors import ConfigError, EngineDeadError, PyllmError, RequestError
from pyllm.flags.keyword_settings import engine_keywords
from pyllm.frontend.chat.preprocessor import ChatPreprocessor
from pyllm.frontend.observability.measured_sink import MeasuredSink
from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.observability.metrics_snapshot import Metric, read_families
from pyllm.frontend.observability.summary import RecentRequests, Summary
from pyllm.frontend.text.outputs import OutputFold, Request, RequestOutput, RequestProcessor
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.sampling_texts import resolve_texts_aside
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch import topology
from pyllm.launch.resolve import resolve_config
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.supervision.process_samples import ProcessSampler, load_nvml
from pyllm.supervision.server_processes import STOP_GRACE
from pyllm.supervision.start_progress import show_progress
from pyllm.supervision.supervised_process import SupervisedProcess, start_state
from pyllm.wire.messages import Restarts
from pyllm.wire.sockets import SocketFolder

# An engine inside an application has the server's time limits.
LIMITS = ServerConfig()

# As in vLLM, a dict has `prompt` or `prompt_token_ids`, and perhaps a `cache_salt`.
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = dict[str, Any]


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation becomes a prompt; names and defaults are vLLM's.

    `tools` are descriptions of functions for the template, `chat_template_kwargs` other variables that it looks at;
    `chat_template` is the source of another template. With `continue_final_message`, and `add_generation_prompt` off,
    the model goes on with the last message.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[dict[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What the template finds beside the messages."""
        return {**(self.chat_template_kwargs or {}), **({} if self.tools is None else {"tools": self.tools})}


RENDERING = Rendering()


class AsyncEngine:
    """Use it as `async with AsyncEngine(model, tensor_parallel_size=2) as engine:`, or call `start` and `close`.

    `model` is a GGUF file or a Hugging Face folder, empty for the embedded one; the options are those of `pyllm serve`,
    with underscores, and vLLM's are read as `pyllm serve` reads them. One that is None has its default.

    Raises:
        ConfigError: an option that is unknown or cannot work.
    """

    def __init__(self, model: str | None = "", **options: Any) -> None:
        self._config, self._checkpoint = resolve_config(engine_config({"model": model, **engine_keywords(options)}))
        self.tokenizer = Tokenizer(self._checkpoint.tokenizer)
        self._chat_template = ChatTemplate.of(self._checkpoint.tokenizer)
        self._folder: SocketFolder | None = None
        self._processes: list[SupervisedProcess] = []  # the core's, and its fork server's
        self._loss: asyncio.Future[PyllmError] | None = None  # of a process, for good; None: not started
        self._client: EngineClient | None = None
        self._prompts: PromptEncoder | None = None
        self._request_ids = itertools.count()
        self._processors: dict[str, RequestProcessor] = {}
        self._recent = RecentRequests()
        self._metrics: Metrics | None = None
        nvml = load_nvml() if self._config.device.device != "cpu" else None
        self._sampler = ProcessSampler(self._pids, nvml=nvml, restarts=self._restarts)

    async def __aenter__(self) -> "AsyncEngine":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests without parameters get: the sampling defaults of the model's files, or of the options."""
        return SamplingParams(**self._checkpoint.sampling.given())

    @property
    def model_name(self) -> str:
        """The name of the model, as its files have it."""
        return self._checkpoint.name

    def chat_preprocessor(self, server: ServerConfig = LIMITS) -> ChatPreprocessor:
        """What makes prompts of conversations and reads the answers, with the parsers of `server`; once it is started.

        Raises:
            ConfigError: there is no such parser.
            EngineDeadError: it is not started.
        """
        return ChatPreprocessor(self._encoder(), self.tokenizer, self._chat_template, server)

    def spawn(self) -> None:
        """Start the engine's processes without waiting for them; `start` does this where it was not done before.

        Call it from the main thread where there is a choice: the kernel ends them when the thread that started them
        ends, so that a killed application leaves nothing behind.
        """
        self._folder = SocketFolder()
        config = CoreConfig(
            engine=self._config,
            checkpoint=self._checkpoint,
            bind=f"ipc://{self._folder.path}/core-0",
            socket_folder=self._folder.path,
            ready_timeout=LIMITS.ready_timeout,
            shutdown_timeout=LIMITS.shutdown_timeout,
            fork_server=topology.fork_server_address(self._config, self._folder.path),
        )
        self._processes = [process for group in topology.supervised_engine(config) for process in group]
        for process in self._processes:
            process.spawn()

    async def start(self) -> None:
        """Start the engine's processes and wait until the model is loaded.

        Raises:
            StartError: it did not become ready; the text has the stage it was in.
            EngineDeadError: a process was lost for good meanwhile.
            PyllmError: it is started already, and not closed.
        """
        if self._loss is not None:
            raise PyllmError("this engine is started already: `start` is for a new one, or for one that was closed")
        if not self._processes:
            self.spawn()
        self._loss = asyncio.get_running_loop().create_future()
        connecting = asyncio.create_task(self._connect())
        processes = self._processes  # `close` takes them away while the bar may still look.
        showing = asyncio.create_task(show_progress(lambda: start_state(processes)))
        try:
            either: set[asyncio.Future[Any]] = {connecting, self._loss}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._loss.done():
                raise self._loss.result()
            await connecting
        except BaseException:
            connecting.cancel()
            await asyncio.wait({connecting})
            await self.close()
            raise
        finally:
            showing.cancel()
            await asyncio.wait({showing})  # The bar is gone before anybody else writes.
        for process in self._processes:
            process.stand_by()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's output so far, after every change; the last one is `finished`. Leaving early aborts it.

        `prompt` is a text, or token ids. `priority`, vLLM's argument, is that of `scheduling` under its own name.

        Raises:
            RequestError: the request cannot run.
            EngineDeadError: the engine was given up: the core or its workers died too often.
        """
        async with self._running(prompt, sampling_params, request_id, scheduling.with_priority(priority)) as (
            fold,
            changed,
        ):
            finished = False
            while not finished:
                await changed.wait()
                changed.clear()
                output = fold.snapshot()
                finished = output.finished
                yield output

    async def complete(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> RequestOutput:
        """The finished output alone; as `generate` otherwise."""
        async with self._running(prompt, sampling_params, request_id, scheduling.with_priority(priority)) as (
            fold,
            changed,
        ):
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
    ) -> AsyncGenerator[RequestOutput, None]:
        """`generate` for a conversation, rendered by the model's chat template, or as `Rendering` says.

        Raises:
            RequestError: the model has no template, or the template refuses the messages; else as `generate`.
        """
        prompt = await self.encode_chat(messages, rendering)
        outputs = self.generate(prompt, sampling_params, request_id, priority, scheduling)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def encode_chat(self, messages: Sequence[Message], rendering: Rendering = RENDERING) -> list[int]:
        """The token ids of a conversation, rendered by the model's chat template; raises as `chat` does."""
        template = None
        if rendering.chat_template is not None:
            try:
                template = await asyncio.to_thread(
                    ChatTemplate.of_request, rendering.chat_template, self._chat_template
                )
            except ConfigError as error:
                raise RequestError(str(error), "chat_template") from None
        tokens = await self._encoder().encode_chat(
            messages,
            rendering.add_generation_prompt,
            rendering.continue_final_message,
            variables=rendering.variables,
            template=template,
        )
        return tokens.tolist()

    async def embed(
        self,
        prompt: Prompt,
        priority: int | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        dimensions: int | None = None,
    ) -> EmbeddingRequestOutput:
        """A prompt's embedding, of length 1: the last token's final hidden state, or the mean of all.

        The model's files say which. `dimensions` cuts it, of a model that was trained for this.

        Raises:
            DeadlineError: the `timeout` of `scheduling` passed.
            RequestError, EngineDeadError: as `generate`; the prompt may fill the context.
        """
        client = self._connected()
        prompt, scheduling = read_prompt(prompt, scheduling.with_priority(priority))
        (tokens,) = await self._encoder().encode([prompt], too_long=refuse_input, name="input")
        embedding = await client.embed(tokens, scheduling, dimensions)
        name = f"request-{next(self._request_ids)}"
        return EmbeddingRequestOutput(
            name, EmbeddingOutput(embedding.values.tolist()), tokens.tolist(), embedding.cached_tokens
        )

    def abort(self, request_id: str) -> None:
        """End a request that `generate` is running: its last output says `abort`. Unknown ids are ignored."""
        processor = self._processors.get(request_id)
        if processor is not None:
            processor.abort()

    async def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters."""
        return await self._connected().stats()

    async def get_metrics(self) -> list[Metric]:
        """Every metric of `GET /metrics`, as structs, in the form of vLLM's `LLM.get_metrics`."""
        stats, samples = await self.stats(), (await asyncio.to_thread(self._sampler.sample)).processes
        metrics, condition = self._metrics, self._connected().condition()
        assert metrics is not None
        shown = metrics.shown(stats, metrics.counted(), condition, samples)
        return read_families(shown.collect())

    async def get_summary(self, window: float = 60.0) -> Summary:
        """Throughput, latencies, hit rates and memory of the last `window` seconds."""
        stats, samples = await self.stats(), (await asyncio.to_thread(self._sampler.sample)).processes
        devices = [sample.device_bytes for sample in samples if sample.device_bytes is not None]
        memory = sum(sample.memory_bytes for sample in samples)
        return self._recent.summary(window, stats, memory, sum(devices) if devices else None)

    async def explain(self, request_id: str) -> list[SampleReport]:
        """Where each sample of a request that runs here stands, and why it is not further.

        Raises:
            RequestError: there is none of this id.
        """
        processor = self._processors.get(request_id)
        if processor is None:
            raise RequestError(f"request {request_id!r} is not running", "request_id")
        return await processor.explain()

    async def decisions(self, limit: int = 100) -> list[Decision]:
        """What the last steps decided, oldest first."""
        return await self._connected().decisions(limit)

    async def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change settings of the scheduler while it runs; see `EngineClient.reconfigure`."""
        return await self._connected().reconfigure(**changes)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; what runs keeps its blocks."""
        await self._connected().reset_prefix_cache()

    async def close(self) -> None:
        """Abort what runs and end the core; may be called twice, and on an engine that never became ready."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._loss = None
        processes, self._processes = self._processes, []
        folder, self._folder = self._folder, None
        try:
            for process in processes:
                await process.stop(STOP_GRACE)
        finally:  # Nothing may be left behind, even where nobody waits for it any more.
            for process in processes:
                process.kill()
            if folder is not None:
                folder.close()

    @contextlib.asynccontextmanager
    async def _running(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str | None, scheduling: SchedulingParams
    ) -> AsyncIterator[tuple[OutputFold, asyncio.Event]]:
        client, params = self._connected(), copy(params or self.get_default_sampling_params())
        params.validate()
        prompt, scheduling = read_prompt(prompt, scheduling)
        text = prompt if isinstance(prompt, str) else None
        (tokens,) = await self._encoder().encode([prompt])
        params = await resolve_texts_aside(params, self.tokenizer)
        name = request_id if request_id is not None else f"request-{next(self._request_ids)}"
        if name in self._processors:
            raise RequestError(f"request {name!r} is running already; give each request an id of its own", "request_id")
        changed = asyncio.Event()
        fold = OutputFold(name, text, tokens.tolist(), params, changed.set)
        request = Request(tokens, params, msgspec.structs.replace(scheduling, name=name))
        assert self._metrics is not None, "it is there from the connection on"
        measured = self._recent.follow(len(tokens), params.n), self._metrics.request(len(tokens), params.n)
        sink = MeasuredSink(fold, *measured)
        processor = self._processors[name] = RequestProcessor(client, self.tokenizer, request, sink)
        try:
            yield fold, changed
        finally:
            processor.drop()
            del self._processors[name]

    async def _connect(self) -> None:
        address, *_ = await asyncio.gather(*(process.start(self._lose) for process in self._processes))
        self._client = await EngineClient.connect(address)
        self._client.draw_seeds_from(self._config.model.seed)
        model = self._client.model
        self._metrics = Metrics(model.name, model, connection=self._client.counts)
        self._prompts = PromptEncoder(self.tokenizer, self._chat_template, model, self._metrics.encoding)

    def _pids(self) -> list[int]:
        return [process.process.pid for process in self._processes if process.process is not None]

    def _restarts(self) -> list[Restarts]:
        return [restarts for process in self._processes for restarts in process.restarts]

    def _lose(self, reason: BaseException) -> None:
        """The core, or the fork server that it needs, is gone for good."""
        error = reason if isinstance(reason, PyllmError) else EngineDeadError(str(reason))
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(error)
        if self._client is not None:
            self._client.give_up(error)

    def _encoder(self) -> PromptEncoder:
        self._connected()
        assert self._prompts is not None
        return self._prompts

    def _connected(self) -> EngineClient:
        if self._client is None:
            raise EngineDeadError("the engine is not running: use `async with`, or await start()")
        return self._client


def read_prompt(prompt: Prompt, scheduling: SchedulingParams) -> tuple[str | Sequence[int], SchedulingParams]:
    """A prompt as text or token ids, and the scheduling parameters with what a prompt of vLLM's form says of them.

    Raises:
        RequestError: it is neither a text, nor token ids, nor a dict with one of these.
    """
    if isinstance(prompt, Mapping):
        given: dict[str, Any] = dict(prompt)
        salt = given.pop("cache_salt", None)
        if salt is not None:
            scheduling = msgspec.structs.replace(scheduling, cache_salt=salt)
        content = given.pop("prompt_token_ids", None)
        text = given.pop("prompt", None)
        content = text if content is None else content
        if given:
            has = "prompt or prompt_token_ids, and perhaps cache_salt"
            names = ", ".join(map(repr, given))
            raise RequestError(f"a prompt that is a dict has {has}; this one also has {names}", "prompt")
        if content is None:
            raise RequestError("a prompt that is a dict needs prompt or prompt_token_ids", "prompt")
        prompt = content
    if isinstance(prompt, str | PromptTokens):
        return prompt, scheduling
    if not isinstance(prompt, Sequence) or not all(isinstance(token, int) for token in prompt):
        raise RequestError(f"a prompt is a text or a list of token ids, not {prompt!r:.80}", "prompt")
    return prompt, scheduling
