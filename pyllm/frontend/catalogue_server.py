"""The application of a catalogue, and the state of each model that is loaded: composes the rest of the frontend."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from pyllm.checkpoint.cache import file_identity
from pyllm.checkpoint.types import TokenizerFiles
from pyllm.config.process_config import ApiConfig
from pyllm.errors import ConfigError
from pyllm.frontend.admin.routes import Reloaded, reload_credentials
from pyllm.frontend.app import answer_error, metrics_route, model_app, version_route, with_edge
from pyllm.frontend.catalogue.catalogue import Catalogue
from pyllm.frontend.catalogue.catalogue_app import CatalogueApp
from pyllm.frontend.catalogue.catalogue_metrics import expose
from pyllm.frontend.catalogue.model_service import ModelService
from pyllm.frontend.catalogue.ollama_models import ollama_catalogue_routes
from pyllm.frontend.catalogue.routes import catalogue_routes
from pyllm.frontend.edge.access_log import RouteNames
from pyllm.frontend.generation_check import GenerationCheck
from pyllm.frontend.health import condition_routes, generation_route
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routes_app import RoutesApp
from pyllm.frontend.http.routing import path_format, post
from pyllm.frontend.observability.http_counts import NO_ROUTE
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.page.page_files import page_routes
from pyllm.frontend.requests.json_request import decoded
from pyllm.frontend.requests.request_guards import admins_only
from pyllm.frontend.requests.server_cores import ServerCores
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.upkeep import log_stats, shed_reports
from pyllm.supervision.process_samples import ProcessSampler

# Tokenizers of the last models, loaded or not, that stay for the next time.
MAX_KEPT_TOKENIZERS = 8


class ServerParts(NamedTuple):
    """The parts that all models of one server share: keys, figures of processes, the link to the supervisor."""

    credentials: ServerCredentials
    sampler: ProcessSampler
    parent_silence: Callable[[], float]
    ask_reload: Callable[[], None]


def create_catalogue_app(catalogue: Catalogue, parts: ServerParts) -> ASGIApp:
    """The application of a catalogue behind its edge. Other routes than its own are those of a model."""

    @post("/admin/reload", summary="Read the file of API keys and the certificate again", responses=ERROR_RESPONSES)
    def reload() -> Reloaded:
        return reload_credentials(catalogue.credentials, parts.ask_reload)

    async def metrics_text(shows_fields: bool) -> bytes:
        samples = await asyncio.to_thread(parts.sampler.sample)
        return await expose(catalogue, samples.processes, shows_fields=shows_fields)

    async def trouble() -> str:
        """The reason why a loaded model generates nothing; the probe loads none."""
        found = await asyncio.gather(*(service.trouble() for service in catalogue.services))
        return next(filter(None, found), "")

    reload.guard = admins_only(catalogue.credentials.keys)
    server = catalogue.server
    routes = [
        *catalogue_routes(catalogue),
        *ollama_catalogue_routes(catalogue),
        *condition_routes(catalogue.condition, catalogue.cores),
        generation_route(catalogue.condition, trouble),
        reload,
        version_route(),
        metrics_route(catalogue.credentials.keys, metrics_text),
        *page_routes(not server.disable_fastapi_docs, server.root_path),
    ]
    paths = [path for route in routes for path in route.paths]
    known = [path_format(path) for path in paths]
    app = RoutesApp(routes, decoded, lambda request, error: answer_error(request, error, known))
    names = RouteNames(paths)
    catalogue.on_opened = lambda service: names.add(service.paths)

    def may_exist(path: str) -> bool:
        """Whether a model may have this path: all have the same ones, which are known from the first loaded one on."""
        has_models = any(model.num_loads for model in catalogue.models.values())
        return not has_models or names.name(path) != NO_ROUTE

    return with_edge(CatalogueApp(catalogue, app, may_exist), catalogue, names)


def _text_parts(files: TokenizerFiles) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and the chat template in these files, made anew if they have changed.

    Raises:
        ConfigError: they cannot be read.
    """
    try:
        identity = file_identity(files.path)
    except OSError as error:
        raise ConfigError(f"cannot read the tokenizer {files.path}: {error.strerror}") from None
    return _made_parts(files, identity)


# To make a tokenizer takes a quarter of a second, and to free it up to a tenth, in which no other thread runs.
@lru_cache(MAX_KEPT_TOKENIZERS)
def _made_parts(files: TokenizerFiles, identity: tuple[int, ...]) -> tuple[Tokenizer, ChatTemplate | None]:
    del identity  # only a part of the cache's key
    return Tokenizer(files), ChatTemplate.of(files)


async def open_service(config: ApiConfig, shared: LocalState, parts: ServerParts) -> ModelService:
    """Load a model's tokenizer, and connect to its cores, which may still be starting.

    Raises:
        EngineDeadError: no core answered within the server's `ready_timeout`.
    """
    loading = asyncio.ensure_future(asyncio.to_thread(_text_parts, config.checkpoint.tokenizer))
    try:
        cores = await ServerCores.connect(config, shared)
    except BaseException:
        loading.cancel()
        raise
    try:
        tokenizer, template = await loading
    except BaseException:
        cores.client.close()
        raise
    state = ServerState.of(config, cores, shared, tokenizer, template, **parts._asdict())
    app, paths = model_app(state)
    background = [cores.follow(), state.history.follow()]
    if not config.server.disable_log_stats:
        background.append(log_stats(cores.client, shared, state.metrics, f"{state.model_name}: "))
    return ModelService(
        state,
        app,
        paths,
        look=shed_reports(state.metrics),
        trouble=GenerationCheck(cores.client).trouble,
        background=background,
    )
