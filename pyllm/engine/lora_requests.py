"""The adapters that a program names by `LoRARequest`, by their numbers. Loads nothing itself: cores do."""

from collections.abc import Callable

import msgspec

from pyllm.client.client import EngineClient
from pyllm.errors import RequestError
from pyllm.parameters.arguments import instance, integer
from pyllm.parameters.lora_request import LoRARequest
from pyllm.parameters.scheduling_params import SchedulingParams


class LoraRequests:
    """`client` gives the engine's client, or raises if the engine does not run."""

    def __init__(self, client: Callable[[], EngineClient]) -> None:
        self._client = client
        self._names: dict[int, str] = {}

    @property
    def numbers(self) -> set[int]:
        """The numbers of the adapters that are loaded."""
        return {number for number, name in self._names.items() if self._client().find_adapter(name) is not None}

    async def chosen(self, scheduling: SchedulingParams, request: LoRARequest | None) -> SchedulingParams:
        """The parameters with the adapter of a request, which is loaded if need be.

        Raises:
            RequestError: it cannot be loaded, its number is another adapter's, or `scheduling` names one, too.
        """
        if request is None:
            return scheduling
        if scheduling.adapter:
            raise RequestError("lora_request and scheduling.adapter name two adapters: leave one out", "lora_request")
        return msgspec.structs.replace(scheduling, adapter=await self._key(request))

    async def add(self, request: LoRARequest) -> bool:
        """Load an adapter. False: it was there already."""
        instance("lora_request", request, LoRARequest)
        before = self._client().find_adapter(request.lora_name)
        return await self._key(request) != ("" if before is None else before.key)

    async def remove(self, number: int) -> bool:
        """Unload an adapter. False: none has this number."""
        name = self._names.pop(integer("lora_id", number), None)
        if name is None or self._client().find_adapter(name) is None:
            return False
        await self._client().unload_adapter(name)
        return True

    async def _key(self, request: LoRARequest) -> str:
        instance("lora_request", request, LoRARequest)
        name, number = request.lora_name, request.lora_int_id
        if self._names.get(number, name) != name:
            text = f"lora_int_id {number} is that of the adapter {self._names[number]!r}: give {name!r} another number"
            raise RequestError(text, "lora_request")
        client, path = self._client(), request.lora_path
        adapter = client.find_adapter(name)
        if adapter is None or request.load_inplace or path not in ("", adapter.path):
            adapter = await client.load_adapter(name, path, request.load_inplace)
        self._names[number] = name
        return adapter.key
