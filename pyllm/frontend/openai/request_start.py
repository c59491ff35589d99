"""The start of every request in OpenAI's shape, before the route reads its own fields."""

import msgspec

from pyllm.config.server_settings import ServerConfig
from pyllm.errors import RequestError
from pyllm.frontend.http.routing import Request
from pyllm.frontend.openai.common_fields import EngineRequest
from pyllm.frontend.openai.protocol import GenerationRequest, StreamOptions
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import begin


async def begin_request(state: ServerState, request: Request, body: EngineRequest) -> RequestContext:
    """The context of a request, with the id, tenant and session of its body, which gets the server's defaults.

    Raises:
        RequestError: as `begin`; or the tenant or the options of the stream are unusable.
    """
    context = await begin(state, request, body)
    context.name_tenant(body.user)
    context.name_session(body.prompt_cache_key, body.user)
    if isinstance(body, GenerationRequest):
        _set_defaults(body, state.server)
        check_stream_options(body)
    return context


def check_stream_options(request: GenerationRequest) -> None:
    """Refuse options of a stream that need another field.

    Raises:
        RequestError: there is no stream, or each chunk is to have the usage and the end is not.
    """
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise RequestError("stream_options requires stream: true", "stream_options")
    if options.continuous_usage_stats and not options.include_usage:
        text = "stream_options.continuous_usage_stats requires include_usage: true"
        raise RequestError(text, "stream_options.continuous_usage_stats")


def _set_defaults(request: GenerationRequest, server: ServerConfig) -> None:
    """Apply the server's flags: usage at a stream's end, ids for tokens' names."""
    if server.enable_force_include_usage and request.stream:
        request.stream_options = msgspec.structs.replace(request.stream_options or StreamOptions(), include_usage=True)
    if server.return_tokens_as_token_ids:
        request.return_tokens_as_token_ids = True
