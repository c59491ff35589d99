"""A catalogue with the supervisor's real `ModelProcesses`, over processes that only say that they start and end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from pyllm.config.catalogue_settings import CatalogueEntry
from pyllm.config.credentials import Credentials
from pyllm.config.process_config import ApiConfig, CatalogueApiConfig, CatalogueNews, CoreConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError, EngineDeadError
from pyllm.frontend.app import model_app
from pyllm.frontend.catalogue.catalogue import Catalogue
from pyllm.frontend.catalogue.model_service import ModelService
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.requests.server_state import DEFAULT_SERVER, ServerState
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch.model_processes import LoadableModel, MemoryRoom, ModelProcesses
from pyllm.launch.topology import SupervisedEngine
from pyllm.supervision.supervised_process import OnLost, SupervisedProcess
from pyllm.wire.supervision_messages import CatalogueChoices
from tests.client.fake_core import connected
from tests.frontend.api_config import api_config
from tests.frontend.serving import TEMPLATE, answering

NOT_LOADED = "the loading of models is held"


class FakeCoreProcess:
    """A core's process. `lose` ends it for good."""

    children: tuple[Any, ...] = ()
    restarts: tuple[Any, ...] = ()

    def __init__(self, name: str, is_held: asyncio.Event, fails: bool) -> None:
        self.name = name
        self._goes_on = is_held
        self._fails = fails
        self.is_running = False
        self.started = asyncio.Event()

    def spawn(self) -> None:
        self.is_running = True

    async def start(self, on_lost: OnLost) -> str:
        await self._goes_on.wait()
        if self._fails:
            raise EngineDeadError(f"{self.name} does not start")
        self.lose = on_lost
        self.started.set()
        return ""

    def stand_by(self) -> None: ...

    def expect_end(self) -> None: ...

    def kill(self) -> None:
        self.is_running = False

    async def stop(self, grace: float) -> None:
        del grace
        await asyncio.sleep(0)
        self.is_running = False


class FakeSupervisor:
    """`sizes` are the bytes of each model; those in `broken` cannot start, those in `missing` cannot be read."""

    def __init__(self, sizes: dict[str, int], budget: int, max_models: int = 0) -> None:
        self.sizes = sizes
        self.broken: set[str] = set()
        self.missing: set[str] = set()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.running: list[FakeCoreProcess] = []
        self.most_bytes = 0
        self.most_models = 0
        self.room = MemoryRoom(budget, max_models)
        self.api: ApiConfig
        self.processes = ModelProcesses(sizes, self._read, self._supervise, self.room)

    def _read(self, name: str) -> LoadableModel:
        if name in self.missing:
            raise ConfigError(f"there is no model at {name}.gguf")
        api = msgspec.structs.replace(self.api, served_model_name=(name,))
        return LoadableModel(cast("list[CoreConfig]", [name]), api, self.sizes[name])

    def _supervise(self, cores: list[CoreConfig]) -> SupervisedEngine:
        name = cast(str, cores[0])
        process = FakeCoreProcess(name, self.goes_on, name in self.broken)
        self.running = [*(each for each in self.running if each.is_running), process]
        names = [each.name for each in self.running]
        assert len(set(names)) == len(names), "a model runs twice"
        self.most_bytes = max(self.most_bytes, sum(self.sizes[each] for each in names))
        self.most_models = max(self.most_models, len(names))
        return SupervisedEngine([cast(SupervisedProcess, process)], [])


class Served:
    """A catalogue, its supervisor, and the time, which `tick` moves on."""

    def __init__(self, supervisor: FakeSupervisor, catalogue: Catalogue) -> None:
        self.supervisor = supervisor
        self.catalogue = catalogue

    def model(self, name: str) -> Any:
        return self.catalogue.models[name]

    @classmethod
    async def start(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        supervisor: FakeSupervisor,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        server: ServerConfig = DEFAULT_SERVER,
        aliases: dict[str, dict[str, float]] | None = None,
        **terms: dict[str, Any],
    ) -> Self:
        """`terms` are those of models by name, beside their sizes."""
        supervisor.api = api_config(folder, "")
        entries = tuple(CatalogueEntry(name=name, **terms.get(name, {})) for name in supervisor.sizes)
        room = supervisor.room
        config = CatalogueApiConfig(
            server=server,
            entries=entries,
            aliases=aliases or {},
            memory_budget=room.budget,
            max_loaded_models=room.max_models,
            wanted=supervisor.processes.wanted,
            last_wish=supervisor.processes.last_wish,
        )
        loop = asyncio.get_running_loop()

        async def open_service(api: ApiConfig, shared: LocalState) -> ModelService:
            name = api.served_model_name[0]
            await next(each for each in supervisor.running if each.name == name and each.is_running).started.wait()
            client = await connected(answering(tokenizer, f"I am {name}"))
            template = ChatTemplate(TEMPLATE, "<|start|>", "<|end|>")
            state = ServerState(
                client, tokenizer, template, name, checkpoint=api.checkpoint, server=api.server, shared=shared
            )
            return ModelService(state, *model_app(state))

        def want(choices: CatalogueChoices) -> None:
            loop.call_soon(supervisor.processes.want, choices.wanted)

        def tell() -> None:
            loop.call_soon(
                lambda: catalogue.follow(CatalogueNews(credentials=Credentials(), models=supervisor.processes.news))
            )

        credentials = ServerCredentials(server, Credentials())
        catalogue = Catalogue(config, credentials, want, open_service, clock=clock)
        supervisor.processes.on_news = tell
        tell()
        return cls(supervisor, catalogue)
