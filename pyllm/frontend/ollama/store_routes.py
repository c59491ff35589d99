"""`POST /api/pull` and `DELETE /api/delete`: the hub's cache of this machine. Where keys exist, for admins."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from pyllm.checkpoint.hub import Hub, find_model, repository_folder
from pyllm.checkpoint.hub_cache import remove
from pyllm.checkpoint.model_name import HubName, parse_hub_name
from pyllm.config.api_keys import KeyRing
from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.frontend.answers.answer_format import LINES, send_failure, send_json, start_events
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import QueueFullError, describe
from pyllm.frontend.http.pushed_response import Channel, push
from pyllm.frontend.http.routing import JSONBody, Response, ResponseSpec, Route, delete, post
from pyllm.frontend.ollama.error_format import ERROR_RESPONSES, error_response
from pyllm.frontend.ollama.model_names import MissingModelError
from pyllm.frontend.ollama.model_routes import required_name
from pyllm.frontend.ollama.protocol import ModelRequest, PullProgress, PullRequest
from pyllm.frontend.requests.model_tags import LATEST
from pyllm.frontend.requests.request_guards import admins_where_keys

# Downloads at the same time.
MAX_PULLS = 4

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class _Stopped(Exception):  # noqa: N818  what ends the download of a client that has left
    """The client has left."""


def store_routes(
    keys: KeyRing, has_model: Callable[[str], bool], files: Callable[[], Iterable[str]], hub: Hub
) -> list[Route]:
    """The routes over this hub and its cache, for a server with these `keys`.

    A model that it has already needs no download, and none of the `files` that it serves is deleted.
    """
    pulls: set[Pull] = set()

    def is_served(name: str) -> bool:
        return has_model(name) or has_model(name.removesuffix(LATEST))

    @post(
        "/api/pull",
        summary="Download a model of the Hugging Face hub, in Ollama's shape",
        responses={200: ResponseSpec(PullProgress), **ERROR_RESPONSES},
    )
    async def pull_model(data: JSONBody[PullRequest]) -> ASGIApp | Response[PullProgress]:
        name = required_name(data)
        if is_served(name):
            return Response(PullProgress("success"))
        if len(pulls) >= MAX_PULLS:
            raise QueueFullError(f"{MAX_PULLS} models are being downloaded already; try again later", 60.0)
        pull = Pull(_hub_name(name), hub, data.stream is not False, pulls.discard)
        pulls.add(pull)
        return partial(push, pull)

    @delete(
        "/api/delete",
        summary="Delete a downloaded model, in Ollama's shape",
        responses={200: ResponseSpec(None), **ERROR_RESPONSES},
    )
    async def delete_model(data: JSONBody[ModelRequest]) -> Response[None]:
        name = required_name(data)
        try:
            hub_name = _hub_name(name)
            folder = await asyncio.to_thread(repository_folder, hub_name, hub)
            if any(Path(file).is_relative_to(folder) for file in files()):
                raise RequestError(f"{name!r:.200} is of the repository that is being served", "model")
            await asyncio.to_thread(remove, hub_name, hub.cache_dir)
        except (ConfigError, MissingModelError):
            if is_served(name):
                raise RequestError(f"{name!r:.200} is being served, and stays", "model") from None
            raise MissingModelError(name) from None
        return Response(None)

    routes = [pull_model, delete_model]
    for route in routes:
        route.guard = admins_where_keys(keys)
    return routes


class Pull:
    """The `Answer` of one download: a line for each news of it, or one object at its end.

    It runs on a thread of its own, which does not keep the process from ending. `ended` is called with the pull once
    that thread has ended; a client that leaves ends its download, which the next one resumes.
    """

    def __init__(self, name: HubName, hub: Hub, streamed: bool, ended: "Callable[[Pull], None]") -> None:
        self._name = name
        self._hub = hub
        self._streamed = streamed
        self._ended = ended
        self._channel: Channel
        self._over = False
        self._waiting: PullProgress | None = None  # the latest, while the reader is slow

    def begin(self, channel: Channel) -> None:
        """Start the download."""
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._show(PullProgress("pulling manifest"))
        threading.Thread(target=self._run, name="pyllm-pull", daemon=True).start()

    def drained(self) -> None:
        """Write the latest progress."""
        if self._waiting is not None:
            self._show(self._waiting)

    def end(self) -> None:
        """End the download if it still runs."""
        self._over = True

    def _run(self) -> None:
        failure: PyllmError | None = None
        try:
            find_model(self._name, self._hub, report=self._report)
        except _Stopped:
            logger.info("the download of %s has been stopped, as its client has left", self._name.text)
        except PyllmError as error:
            failure = PyllmError(str(error))
        except Exception:
            logger.exception("the download of %s failed", self._name.text)
            failure = PyllmError("the download failed; the server's log says why")
        self._loop.call_soon_threadsafe(self._finish, failure)

    def _report(self, file: str, done: int, total: int) -> None:
        if self._over:
            raise _Stopped
        self._loop.call_soon_threadsafe(self._show, PullProgress(f"pulling {file}", file, total, done))

    def _show(self, progress: PullProgress) -> None:
        self._waiting = None
        if self._over or not self._streamed:
            return
        if self._channel.blocked:
            self._waiting = progress
            return
        start_events(self._channel, LINES)
        self._channel.write(_line(progress))

    def _finish(self, failure: PyllmError | None) -> None:
        self._ended(self)
        if self._over:
            return
        described = None if failure is None else describe(failure)
        if self._streamed:
            body = PullProgress("success") if described is None else error_response(described)
            self._channel.finish(_line(body))
        elif described is None:
            send_json(self._channel, 200, PullProgress("success"))
        else:
            send_failure(self._channel, described, error_response(described))


def _hub_name(name: str) -> HubName:
    try:
        return parse_hub_name(name)
    except ConfigError:
        raise MissingModelError(name) from None


def _line(body: msgspec.Struct) -> bytes:
    return _encode(body) + b"\n"
