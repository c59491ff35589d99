"""The state that the routes of one API process share: engine client, tokenizer, metrics, and the running answers."""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.types import Checkpoint
from pyllm.client.client import EngineClient
from pyllm.client.core_connection import Condition
from pyllm.config.credentials import Credentials
from pyllm.config.process_config import ApiConfig, SharedConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.frontend.chat.preprocessor import ChatPreprocessor
from pyllm.frontend.http.event_ids import model_hash
from pyllm.frontend.http.keep_alive import KeepAlive
from pyllm.frontend.observability.http_counts import HttpCounts
from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.observability.metrics_history import MetricsHistory
from pyllm.frontend.observability.request_log import RequestLog
from pyllm.frontend.observability.tracing import Tracer
from pyllm.frontend.requests.served_models import ServedModels
from pyllm.frontend.requests.server_cores import ServerCores
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.remote_state import Shared
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.supervision.process_samples import ProcessSampler
from pyllm.wire.heartbeat import SILENCE

Fail = Callable[[PyllmError], None]

DEFAULT_SERVER = ServerConfig()
NO_DEFAULTS = SamplingDefaults()


class ServerState:
    """The shared state, made once at start. `chat_template` is None for a model without one.

    Answers carry `model_name`; requests may name the model by one of `model_aliases` as well, and adapters by their own
    names. `checkpoint` describes the model's files. `sampling` has the defaults of parameters that a request leaves
    out. `max_loras` is of each core. Models that clients pull go to `download_dir`; empty: huggingface_hub's folder.
    `is_on_gpu`: whether the cores compute on GPUs.

    `keys` are those of the `credentials`, by default none. `shared` counts the requests that all API processes admit:
    without it nothing is bounded. `cores` are those of `client`, as the API processes use them.
    `parent_silence` gives the seconds since the parent's last heartbeat, `sampler` the resources of the server's
    processes; `crash_folder` has the records of crashes. `ask_reload` makes the other API processes read their
    `credentials` again.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        model_name: str,
        *,
        checkpoint: Checkpoint,
        model_aliases: Sequence[str] = (),
        server: ServerConfig = DEFAULT_SERVER,
        sampling: SamplingDefaults = NO_DEFAULTS,
        max_loras: int = 0,
        download_dir: str = "",
        is_on_gpu: bool = False,
        credentials: ServerCredentials | None = None,
        shared: Shared | None = None,
        cores: ServerCores | None = None,
        tracer: Tracer | None = None,
        parent_silence: Callable[[], float] = lambda: 0.0,
        sampler: ProcessSampler | None = None,
        crash_folder: str = "",
        ask_reload: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.server = server
        self.checkpoint = checkpoint
        self.sampling = sampling
        self.download_dir = download_dir
        self.is_on_gpu = is_on_gpu
        self.credentials = credentials or ServerCredentials(server, Credentials())
        self.keys = self.credentials.keys
        self.ask_reload = ask_reload
        self.shared = shared or LocalState(SharedState(SharedConfig()))
        self.cores = cores or ServerCores(client, self.shared, server)
        self.ticket_numbers = itertools.count(1)
        self.tracer = tracer
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.model_name = model_name
        self.models = ServedModels(client, (model_name, *model_aliases))
        self.metrics = Metrics(model_name, client.model, connection=client.counts, max_loras=max_loras)
        self.history = MetricsHistory(self.metrics, client, self.shared)
        self.prompts = PromptEncoder(tokenizer, client.model, self.metrics.encoding)
        self.chat = ChatPreprocessor(self.prompts, tokenizer, chat_template, server)
        self.sampler = sampler or ProcessSampler(lambda: [os.getpid()])
        self.crash_folder = crash_folder
        self.request_log = RequestLog(server, self._text_of)
        self.keep_alive = KeepAlive(server.sse_keep_alive_interval)
        self.answer_thread = ThreadPoolExecutor(1, "pyllm-answers")  # one, as each may hold up the event loop for 5 ms
        self.draining = False
        self._parent_silence = parent_silence
        self._running: set[Fail] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    def of(
        cls,
        config: ApiConfig,
        cores: ServerCores,
        shared: Shared,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        credentials: ServerCredentials | None = None,
        parent_silence: Callable[[], float] = lambda: 0.0,
        sampler: ProcessSampler | None = None,
        ask_reload: Callable[[], None] = lambda: None,
    ) -> Self:
        """The state of an API process or embedded application, made from its configuration.

        `credentials` are by default those of the configuration.
        """
        model_name, *model_aliases = config.served_model_name
        endpoint = config.server.otlp_traces_endpoint
        return cls(
            cores.client,
            tokenizer,
            chat_template,
            model_name,
            checkpoint=config.checkpoint,
            model_aliases=model_aliases,
            server=config.server,
            sampling=config.checkpoint.sampling,
            max_loras=config.max_loras,
            download_dir=config.download_dir,
            is_on_gpu=config.is_on_gpu,
            credentials=credentials or ServerCredentials(config.server, config.credentials),
            shared=shared,
            cores=cores,
            tracer=Tracer.to_collector(endpoint) if endpoint else None,
            parent_silence=parent_silence,
            sampler=sampler,
            crash_folder=config.flight_recorder_dir,
            ask_reload=ask_reload,
        )

    def _text_of(self, tokens: Sequence[int]) -> str:
        # The ids of a pair's second text are further on.
        tokens = [token % self.client.model.vocab_size for token in tokens]
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    @property
    def http(self) -> HttpCounts:
        """The counts of the server's requests."""
        return self.metrics.http

    @property
    def is_idle(self) -> bool:
        """Whether no answer runs."""
        return not self._running

    async def idle(self) -> None:
        """Wait until no answer runs."""
        await self._idle.wait()

    def system_fingerprint(self, adapter: str) -> str:
        """OpenAI's name for everything that tokens depend on besides the seed; equal for equal models and adapters."""
        return f"fp_{model_hash(self.client.fingerprint, adapter)}"

    def condition(self) -> Condition:
        """Whether requests should come here, and why not. Requests that come while no core is up wait for one."""
        condition = self.client.condition()
        if self.draining:
            return Condition(False, condition.stalled, "the server is shutting down")
        silence = self._parent_silence()
        if condition.ready and silence > SILENCE:  # Without a supervisor, processes that die are not replaced.
            return Condition(False, reason=f"the server's supervisor has given no sign of life for {silence:.1f} s")
        if condition.ready and self.shared.trouble:
            return Condition(False, reason=self.shared.trouble)
        return condition

    def enter(self, fail: Fail) -> None:
        """Note that an answer has begun, and how to end it.

        Raises:
            EngineDeadError: the server is shutting down.
        """
        if self.draining:
            raise EngineDeadError("the server is shutting down and takes no new requests")
        self._running.add(fail)
        self._idle.clear()

    def leave(self, fail: Fail) -> None:
        """Note that an answer has ended."""
        self._running.discard(fail)
        if not self._running:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Refuse new requests; give running ones `grace` seconds to finish, then end them with an error."""
        self.draining = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for fail in list(self._running):
                fail(EngineDeadError(f"the server shut down before this request was finished ({grace:g} s)"))
