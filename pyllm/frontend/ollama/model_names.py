"""The model that a request of Ollama's API names, and the error where there is none."""

import time

from pyllm.frontend.http.failure import UnknownModelError
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState


class MissingModelError(UnknownModelError):
    """A model that is not here, in Ollama's words, which clients look for."""

    def __init__(self, name: str) -> None:
        super(UnknownModelError, self).__init__((f"model '{name:.200}' not found",), "model")


async def choose_model(state: ServerState, context: RequestContext, name: str) -> float:
    """Note the model or adapter that a request names; gives the seconds until it was there.

    Raises:
        MissingModelError: there is none of this name.
        PyllmError: as `ServedModels.choose`.
    """
    start = time.monotonic()
    try:
        await state.models.choose(context, name)
    except UnknownModelError:
        raise MissingModelError(name) from None
    return time.monotonic() - start
