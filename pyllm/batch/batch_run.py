"""The run of a batch: sends all requests without an answer to one server, several at once. Starts no server."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyllm.batch.answer_file import AnswerFile
from pyllm.batch.request_file import CHATS, BatchRequest, RequestFile
from pyllm.batch.request_sender import RequestSender, UnreachableError, Usage
from pyllm.errors import ConfigError
from pyllm.wire.server_address import model_names
from pyllm.wire.server_trust import ServerTrust, connection_advice

_CONNECT_TIMEOUT = 10.0
_SHORT_TIMEOUT = 60.0  # seconds for the list of models
_OK = 200


class BatchServer(msgspec.Struct, frozen=True):
    """A server, and how many requests it gets at once. `base_url` is without `/v1`; `socket` is a Unix socket path."""

    base_url: str
    max_concurrency: int
    socket: str = ""
    api_key: str = ""
    trust: ServerTrust = ServerTrust()


class Totals(msgspec.Struct, frozen=True):
    """Totals of a run that took `seconds`."""

    num_answered: int
    usage: Usage
    seconds: float


class _ModelDescription(msgspec.Struct):
    chat_template_notice: str = ""


async def run_batch(
    requests: RequestFile, answers: AnswerFile, server: BatchServer, transport: Any | None = None
) -> Totals:
    """Send all requests that have no answer yet. A failed request gets an answer that gives the reason.

    `transport` is an `httpx2` transport that replaces the network, for tests.

    Raises:
        ConfigError: the server has none of the models that the requests name, or refuses the key, or its model has no
            chat template and every request with messages would fail.
        PyllmError: the server cannot be reached, or answers cannot be written; answers already written stay.
    """
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # No thread of its own.
    left = [request for request in requests.requests if request.custom_id not in answers.answered]
    pending = iter(left)
    before, start, total = len(answers.answered), time.perf_counter(), Usage()
    with tqdm(total=len(requests.requests), initial=before, unit="request", dynamic_ncols=True, disable=None) as bar:
        async with _client(server, transport) as http:
            await _check_models(http, requests)
            await _check_template(http, left)
            sender = RequestSender(http)

            async def work() -> None:
                nonlocal total
                for request in pending:  # All workers share the iterator: each takes the next request.
                    answer, usage = await sender.send(request.custom_id, request.url, requests.body(request))
                    answers.append(answer)
                    total = total.plus(usage)
                    bar.set_postfix_str(total.rates(time.perf_counter() - start), refresh=False)
                    bar.update(1)

            count = min(server.max_concurrency, len(left))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(count):
                        group.create_task(work())
            except BaseExceptionGroup as errors:
                raise _first(errors) from None
    return Totals(len(answers.answered) - before, total, time.perf_counter() - start)


def _client(server: BatchServer, transport: Any | None) -> Any:
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It logs every request.

    count = server.max_concurrency
    limits = httpx2.Limits(max_connections=count, max_keepalive_connections=count)
    headers: Mapping[str, str] = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    if server.socket:
        transport = httpx2.AsyncHTTPTransport(uds=server.socket, limits=limits)
    return httpx2.AsyncClient(
        base_url=server.base_url,
        headers=headers,
        limits=limits,
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT),
        transport=transport,
        verify=server.trust.verify(),
    )


async def _check_models(http: Any, requests: RequestFile) -> None:
    """Raise where the server is unreachable or has none of the models. Other problems show when requests are sent."""
    import httpx2

    try:
        response = await http.get("/v1/models", timeout=_SHORT_TIMEOUT)
    except httpx2.TransportError as error:
        failure = str(error) or type(error).__name__
        advice = connection_advice(failure) or "is the address right?"
        raise UnreachableError(f"no connection to the server at {http.base_url}: {failure}; {advice}") from None
    if response.status_code != _OK:
        return
    try:
        served = set(model_names(response.content))
    except msgspec.DecodeError:
        return
    if requests.models and served and not requests.models & served:
        raise ConfigError(
            f"{requests.path} asks for the model {min(requests.models)!r}, and the server has {min(served)!r}: change "
            f"the requests, or serve it by that name (--served-model-name {min(requests.models)})"
        )


async def _check_template(http: Any, requests: Sequence[BatchRequest]) -> None:
    """Raise where the server says that its model takes no messages, and no request brings a chat template."""
    import httpx2

    chats = [request for request in requests if request.url in CHATS]
    if not chats or not all(request.needs_template for request in chats):
        return
    try:
        response = await http.get("/model_info", timeout=_SHORT_TIMEOUT)
        notice = msgspec.json.decode(response.content, type=_ModelDescription).chat_template_notice
    except (httpx2.TransportError, msgspec.DecodeError):
        return  # Another server, or one that the first request will report.
    if notice:
        raise ConfigError(f"nothing was sent, as {len(chats)} of {len(requests)} requests have messages: {notice}")


def _first(errors: BaseException) -> BaseException:
    """The first error of a nested exception group; the others are the same or follow from it."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
