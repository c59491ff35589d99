"""The page's files, read once, answered with an ETag under a strict Content-Security-Policy. Knows no engine.

They are public: a browser has no key to send for them. What the page shows is not.
"""

import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

PREFIX = "/page/"
INDEX = "index.html"
# Where the page shows the routes; the server's page of routes used to be at `/docs`.
ROUTES_VIEW = "./#/api"

MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# Everything comes from this server, and nothing is written into the page that could run.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
HEADERS = {
    # Names are not those of a version, so a browser asks each time, and mostly hears that nothing has changed.
    "cache-control": "no-cache",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class PageFile(NamedTuple):
    """One file as it is sent. `etag` has its quotes."""

    body: bytes
    media_type: str
    etag: str


def is_public(method: str, path: str) -> bool:
    """Whether this request is for the page's files, which need no key."""
    return method in {"GET", "HEAD"} and (path in {"/", "/docs"} or path.startswith(PREFIX))


def page_routes(has_docs: bool = True) -> list[HTTPRouteHandler]:
    """The routes. Without `has_docs` nothing leads from `/docs` to the routes, which the server does not describe."""

    @get("/", sync_to_thread=False, include_in_schema=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFoundException  # For programs the address is none of the API's.
        return _answer(request, INDEX)

    @get(PREFIX + "{name:path}", sync_to_thread=False, include_in_schema=False)
    def page_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        return _answer(request, name.removeprefix("/"))

    @get("/docs", status_code=307, sync_to_thread=False, include_in_schema=False)
    def routes_view() -> Response[bytes]:
        return Response(b"", status_code=307, headers={"location": ROUTES_VIEW})

    return [page, page_file, *([routes_view] if has_docs else [])]


@cache
def page_files() -> dict[str, PageFile]:
    """Every file by its path below `/page/`."""
    return dict(_read(resources.files("pyllm.frontend.page").joinpath("static"), ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    files: list[tuple[str, PageFile]] = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            files += _read(entry, name + "/")
        elif (media_type := MEDIA_TYPES.get(name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            files.append((name, PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')))
    return files


def _answer(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    """The file, or that the browser's copy is still the same.

    Raises:
        NotFoundException: there is no such file.
    """
    file = page_files().get(name)
    if file is None:
        raise NotFoundException
    headers = {**HEADERS, "etag": file.etag}
    if name == INDEX:
        headers["vary"] = "accept"
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if file.etag in known:
        return Response(b"", status_code=304, headers=headers, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)
