"""Maps exceptions to HTTP statuses, in this one place. Each API gives the body its own shape."""

import logging
import math
from collections.abc import Sequence

import msgspec

from pyllm.errors import (
    DeadlineError,
    EngineDeadError,
    ProfileRunningError,
    PyllmError,
    RequestError,
    RequestTooLargeError,
)

# Seconds after which an unavailable engine may be back.
ENGINE_RETRY = 5.0
# Models that the error of an unknown one lists.
MAX_NAMES = 20

logger = logging.getLogger(__name__)


class Failure(msgspec.Struct, frozen=True):
    """An error as the caller sees it. `parameter` is the field at fault, `code` a word for programs.

    `kind` is the exhausted budget of a rate limit: requests or tokens. A retry may succeed after `retry_after` seconds;
    a 429 without it is final. `allow` has the methods of a 405. A prompt of `num_tokens` is too long: at most `limit`
    fit.
    """

    status: int
    text: str
    parameter: str | None = None
    code: str | None = None
    kind: str | None = None
    retry_after: float | None = None
    allow: str = ""
    num_tokens: int | None = None
    limit: int | None = None


class UnknownModelError(RequestError):
    """A model that this server does not have."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        shown = ", ".join(map(repr, served[:MAX_NAMES]))
        more = f" and {len(served) - MAX_NAMES} more" if len(served) > MAX_NAMES else ""
        super().__init__(f"The model {name!r} does not exist; this server has {shown}{more}.", "model")


class UnknownAdapterError(RequestError):
    """A LoRA adapter that this server does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The lora adapter {name!r:.200} cannot be found.", "lora_name")


class UnsupportedThreadError(RequestError):
    """A message of a thread that the server is to remember, as Anthropic's does."""


class UnknownResponseError(RequestError):
    """A stored response that does not exist, or belongs to another tenant, which looks the same."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"There is no stored response {response_id!r:.200}; it may have left the store.")


class UnknownRequestError(RequestError):
    """An id that no running or recently ended request has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No request {name!r:.200} runs here, and none of the last 1,000 that ended had this id.")


class UnknownCoreError(RequestError):
    """An index that no core of the server has."""


class MediaTypeError(RequestError):
    """A body that is not announced as JSON."""


class IdempotencyConflictError(RequestError):
    """An Idempotency-Key that was used for another request."""


class ResumeConflictError(RequestError):
    """A stream that cannot go on here: this server would give its rest other tokens."""


class BodyTooLargeError(RequestError):
    """A body that is larger than this server accepts."""


class ClientGoneError(RequestError):
    """A client that left before its body had come: nobody reads the answer."""


class AuthenticationError(PyllmError):
    """No API key, or one that this server does not know."""


class ForbiddenError(PyllmError):
    """The caller may not do this: the route is for admins, or a page of another site sends the request."""


class UnknownRouteError(PyllmError):
    """A path that is no route's."""


class MethodError(PyllmError):
    """A method that the routes of a path do not take; `allow` has those that they do, separated by commas."""

    def __init__(self, methods: Sequence[str]) -> None:
        self.allow = ", ".join(methods)
        super().__init__(f"The route takes {self.allow}.")


class RateLimitError(PyllmError):
    """An account has used up its `kind`, requests or tokens. Without a `retry_after`, in seconds, this is final."""

    def __init__(self, message: str, kind: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class QueueFullError(PyllmError):
    """Too many requests wait already; the caller may retry in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def describe(error: Exception) -> Failure:
    """The failure that the caller sees for any exception. An unforeseen one is logged, and its text hidden."""
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            retry_after = getattr(error, "retry_after", ENGINE_RETRY if status == 503 else None)
            return Failure(
                status,
                str(error),
                getattr(error, "parameter", None),
                code,
                getattr(error, "kind", None),
                retry_after,
                num_tokens=getattr(error, "num_tokens", None),
                limit=getattr(error, "limit", None),
                allow=getattr(error, "allow", ""),
            )
    logger.error("unexpected error while answering a request", exc_info=error)
    return Failure(500, "The server failed on this request; its log says why.")


def failure_headers(failure: Failure) -> list[tuple[bytes, bytes]]:
    """The headers that an error's status asks for."""
    headers = []
    if failure.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(failure.retry_after))))
    elif failure.status in (408, 409, 429, 500):
        # OpenAI's and Anthropic's clients would retry these. But a request that crashed cores would crash as many
        # again, a timeout would be no longer the next time, and a stream of another model remains one.
        headers.append((b"x-should-retry", b"false"))
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if failure.allow:
        headers.append((b"allow", failure.allow.encode()))
    return headers


def decoding_error(error: Exception) -> RequestError:
    """The error of a body that does not decode, with the path of the field where there is one."""
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
    (UnknownAdapterError, 404, "adapter_not_found"),
    (UnknownResponseError, 404, "response_not_found"),
    (UnknownRequestError, 404, "request_not_found"),
    (UnknownCoreError, 404, "core_not_found"),
    (MediaTypeError, 415, "unsupported_media_type"),
    (IdempotencyConflictError, 422, "idempotency_conflict"),
    (ResumeConflictError, 409, "resume_conflict"),
    (BodyTooLargeError, 413, "request_too_large"),
    (RequestTooLargeError, 400, "context_length_exceeded"),
    (UnsupportedThreadError, 400, "thread_unsupported_request"),
    (RequestError, 400, None),
    (UnknownRouteError, 404, None),
    (MethodError, 405, None),
    (AuthenticationError, 401, "invalid_api_key"),
    (ForbiddenError, 403, "permission_denied"),
    (ProfileRunningError, 409, "profile_running"),
    (DeadlineError, 408, "request_timeout"),
    (RateLimitError, 429, "rate_limit_exceeded"),
    (QueueFullError, 503, "queue_full"),
    (EngineDeadError, 503, "engine_unavailable"),
    (PyllmError, 500, None),
)
