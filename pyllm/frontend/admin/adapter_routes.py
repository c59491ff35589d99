"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as in vLLM. Where there are keys they are for admins."""

import msgspec

from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.http.failure import UnknownAdapterError
from pyllm.frontend.http.routing import TEXT, JSONBody, Response, ResponseSpec, Route, post
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.requests.request_guards import admins_where_keys
from pyllm.frontend.requests.server_state import ServerState

_RESPONSES = {200: ResponseSpec(str, media_type=TEXT), **ERROR_RESPONSES}


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """`lora_path` is a folder or GGUF file on the cores' machines, or a repository of the hub.

    With `load_inplace` it may replace an adapter of the same name; requests that have begun end with the old one.
    """

    lora_name: str | None = None
    lora_path: str | None = None
    load_inplace: bool | None = False
    is_3d_lora_weight: bool | None = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """The adapter is known by its name. `lora_int_id` has no effect: vLLM has it, and adapters here have no numbers."""

    lora_name: str | None = None
    lora_int_id: int | None = None


def adapter_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    client = state.client

    @post("/v1/load_lora_adapter", summary="Load a LoRA adapter into all cores", responses=_RESPONSES)
    async def load_lora_adapter(data: JSONBody[LoadAdapterRequest]) -> Response[bytes]:
        _check_enabled(state)
        name, path = data.lora_name, data.lora_path
        if not name or not path:
            field = "lora_path" if name else "lora_name"
            raise RequestError("Both 'lora_name' and 'lora_path' must be provided.", field)
        if data.is_3d_lora_weight:
            raise RequestError("is_3d_lora_weight is not supported: no expert has an adapter", "is_3d_lora_weight")
        if name in state.models.names:
            raise RequestError(
                f"{name!r:.200} is the name of the model itself; give the adapter another one", "lora_name"
            )
        if not data.load_inplace and client.find_adapter(name) is not None:
            text = f"The lora adapter {name!r:.200} has already been loaded. To replace it, set 'load_inplace' to true."
            raise RequestError(text, "lora_name")
        try:
            await client.load_adapter(name, path, data.load_inplace is True)
        except TimeoutError:
            raise EngineDeadError(f"the adapter {name!r:.200} was not loaded in time") from None
        return _success(name, "added")

    @post(
        "/v1/unload_lora_adapter",
        summary="Remove a LoRA adapter; requests that have begun end with it",
        responses=_RESPONSES,
    )
    async def unload_lora_adapter(data: JSONBody[UnloadAdapterRequest]) -> Response[bytes]:
        _check_enabled(state)
        if not data.lora_name:
            raise RequestError("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        if client.find_adapter(data.lora_name) is None:
            raise UnknownAdapterError(data.lora_name)
        try:
            await client.unload_adapter(data.lora_name)
        except TimeoutError:
            raise EngineDeadError("the engine core did not answer in time") from None
        return _success(data.lora_name, "removed")

    routes = [load_lora_adapter, unload_lora_adapter]
    for route in routes:
        route.guard = admins_where_keys(state.keys)
    return routes


def _check_enabled(state: ServerState) -> None:
    if state.client.served_adapters is None:
        raise RequestError("this server has no adapters: start it with --enable-lora")


def _success(name: str, done: str) -> Response[bytes]:
    text = f"Success: LoRA adapter '{name}' {done} successfully."
    return Response(text.encode(), media_type=TEXT)
