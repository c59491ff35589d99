"""A model's name in Ollama's API: `NAME` and `NAME:latest` are one model, and `NAME:TAG` is another."""

import time
from collections.abc import Container

from pyllm.frontend.http.failure import UnknownModelError
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState

LATEST = ":latest"


class MissingModelError(UnknownModelError):
    """A model that is not here, in Ollama's words, which clients look for."""

    def __init__(self, name: str) -> None:
        super(UnknownModelError, self).__init__((f"model '{name:.200}' not found",), "model")


def listed_name(name: str) -> str:
    """The name with a tag, as Ollama lists models."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


def known_name(name: str, known: Container[str]) -> str:
    """The name among the known ones that is the same model; without one, the name without its tag `latest`."""
    names = (name, name.removesuffix(LATEST), f"{name}{LATEST}")
    return next((other for other in names if other in known), name.removesuffix(LATEST))


async def choose_model(state: ServerState, context: RequestContext, name: str) -> float:
    """Note the model or adapter that a request names; gives the seconds until it was there.

    Raises:
        MissingModelError: there is none of this name.
        PyllmError: as `ServedModels.choose`.
    """
    start = time.monotonic()
    served = {*state.models.names, *(adapter.name for adapter in state.models.adapters)}
    try:
        await state.models.choose(context, known_name(name, served))
    except UnknownModelError:
        raise MissingModelError(name) from None
    return time.monotonic() - start
