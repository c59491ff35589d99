"""Exceptions as answers: the one place where an error becomes a status. The shape of its body is each API's own."""

import logging

import msgspec
from litestar.exceptions import HTTPException, ValidationException

from pyllm.errors import EngineDeadError, PyllmError, RequestError, RequestTooLargeError

logger = logging.getLogger(__name__)


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, for the caller. `parameter` is the field at fault, `code` a word for programs."""

    status: int
    text: str
    parameter: str | None = None
    code: str | None = None


class UnknownModelError(RequestError):
    """A model that this server does not have."""

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"The model {name!r} does not exist; this server has {served!r}.", "model")


class UnknownResponseError(RequestError):
    """A stored response that is not there, or is another tenant's, which looks the same."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"There is no stored response {response_id!r:.200}; it may have left the store.")


class MediaTypeError(RequestError):
    """A body that is not announced as JSON."""


def describe(error: Exception) -> Failure:
    """What any exception is to the caller. One that nobody foresaw is logged, and its text is not for the caller."""
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return Failure(status, str(error), getattr(error, "parameter", None), code)
    if isinstance(error, ValidationException):  # Litestar's own; the one thing that it can miss is the body.
        return Failure(400, "The request has no body; send a JSON object.")
    if isinstance(error, HTTPException) and error.status_code < 500:
        return Failure(error.status_code, _HTTP_TEXTS.get(error.status_code, error.detail))
    logger.error("an unforeseen error while answering a request", exc_info=error)
    return Failure(500, "The server failed on this request; its log says why.")


def decoding_error(error: Exception) -> RequestError:
    """What is wrong with a body that does not decode, with the path of the field where there is one."""
    if isinstance(error, RecursionError):
        return RequestError("The body is nested too deeply.")
    if not isinstance(error, msgspec.ValidationError):
        return RequestError(f"The body is not valid JSON: {error}")
    text, _, path = str(error).partition(" - at `")
    # A wrong key of an object has the path "key` in `$.logit_bias`".
    field = path.rpartition("$")[2].removeprefix(".").removesuffix("`")
    if text.startswith("Object contains unknown field"):
        field = f"{field}.{text.split('`')[1]}".removeprefix(".")
        return RequestError(f"{field} is not a known field", field)
    return RequestError(f"{field}: {text}" if field else text, field or None)


# The first that fits, so the special ones come before the general ones.
_STATUSES: tuple[tuple[type[PyllmError], int, str | None], ...] = (
    (UnknownModelError, 404, "model_not_found"),
    (UnknownResponseError, 404, "response_not_found"),
    (MediaTypeError, 415, "unsupported_media_type"),
    (RequestTooLargeError, 400, "context_length_exceeded"),
    (RequestError, 400, None),
    (EngineDeadError, 503, "engine_unavailable"),
    (PyllmError, 500, None),
)

_HTTP_TEXTS = {
    404: "There is no such route; GET /openapi.json lists them.",
    405: "This route does not take this method.",
    413: "The body is larger than this server takes.",
}
