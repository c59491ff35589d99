"""The run of a batch: sends all requests without an answer to one server, several at once. Starts no server."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from pyllm.batch.answer_file import AnswerFile
from pyllm.batch.request_file import CHATS, BatchRequest, RequestFile
from pyllm.batch.request_sender import RequestSender
from pyllm.errors import ConfigError, PyllmError

if TYPE_CHECKING:
    import httpx2


class Totals(msgspec.Struct, frozen=True):
    """Totals of a run that took `seconds`."""

    num_answered: int
    num_prompt_tokens: int
    num_output_tokens: int
    seconds: float


def check_template(requests: RequestFile, answers: AnswerFile, notice: str) -> None:
    """Raise `ConfigError` where the model takes no messages, for the reason `notice`, and no request brings a template.

    It may be asked before the model is loaded. Requests that have an answer do not count.
    """
    left = _left(requests, answers)
    chats = [request for request in left if request.url in CHATS]
    if notice and chats and all(request.needs_template for request in chats):
        raise ConfigError(f"nothing was sent, as {len(chats)} of {len(left)} requests have messages: {notice}")


async def run_batch(
    requests: RequestFile, answers: AnswerFile, http: "httpx2.AsyncClient", max_concurrency: int
) -> Totals:
    """Send all requests that have no answer yet, over a client. A failed request gets an answer with the reason.

    Raises:
        ConfigError: the server has none of the models that the requests name, or refuses the key, or its model has no
            chat template and every request with messages would fail.
        PyllmError: the server cannot be reached, or answers cannot be written; answers already written stay.
    """
    from tqdm import tqdm

    from pyllm.wire.server_client import describe_model

    tqdm.monitor_interval = 0  # No thread of its own.
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It logs every request.
    left = _left(requests, answers)
    pending = iter(left)
    before, start, sender = len(answers.answered), time.perf_counter(), RequestSender(http)
    with tqdm(total=len(requests.requests), initial=before, unit="request", dynamic_ncols=True, disable=None) as bar:
        await _check_models(http, requests)
        check_template(requests, answers, (await describe_model(http)).chat_template_notice)

        async def work() -> None:
            for request in pending:  # All workers share the iterator: each takes the next request.
                answers.append(await sender.send(request.custom_id, request.url, requests.body(request)))
                seconds = time.perf_counter() - start
                prompt, output = sender.num_prompt_tokens / seconds, sender.num_output_tokens / seconds
                rates = f"input: {prompt:,.0f} tokens/s, output: {output:,.0f} tokens/s"
                bar.set_postfix_str(rates, refresh=False)
                bar.update(1)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(max_concurrency, len(left))):
                    group.create_task(work())
        except ExceptionGroup as errors:  # The others are the same error, or follow from it.
            raise errors.exceptions[0] from None
    seconds = time.perf_counter() - start
    return Totals(len(answers.answered) - before, sender.num_prompt_tokens, sender.num_output_tokens, seconds)


async def _check_models(http: "httpx2.AsyncClient", requests: RequestFile) -> None:
    """Raise where the server is unreachable or has none of the models. Other problems show when requests are sent."""
    from pyllm.wire.server_client import UnreachableError, list_models

    try:
        served = set(await list_models(http))
    except UnreachableError:
        raise
    except PyllmError:
        return
    if requests.models and served and not requests.models & served:
        raise ConfigError(
            f"{requests.path} asks for the model {min(requests.models)!r}, and the server has {min(served)!r}: change "
            f"the requests, or serve it by that name (--served-model-name {min(requests.models)})"
        )


def _left(requests: RequestFile, answers: AnswerFile) -> list[BatchRequest]:
    return [request for request in requests.requests if request.custom_id not in answers.answered]
