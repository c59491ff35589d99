"""The page's files, read once, answered with an ETag under a strict Content-Security-Policy. Knows no engine.

The files are public, as a browser has no key to send for them. The data that the page shows is not.
"""

import hashlib
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from pyllm.frontend.http.failure import UnknownRouteError
from pyllm.frontend.http.routing import TEXT, FromPath, Request, Response, Route, get

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
    # File names carry no version, so a browser asks each time, and mostly gets a 304.
    "cache-control": "no-cache",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# The weight in an Accept header.
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


class PageFile(NamedTuple):
    """One file as it is sent. `etag` has its quotes."""

    body: bytes
    media_type: str
    etag: str


# For programs that ask whether a server is here, as those of Ollama do.
RUNNING = b"pyllm is running. GET /openapi.json lists the routes.\n"


def is_public(method: str, path: str) -> bool:
    """Whether this request is for the page's files, which need no key."""
    return method in {"GET", "HEAD"} and (path in {"/", "/docs"} or path.startswith(PREFIX))


def wants_html(accept: str) -> bool:
    """Whether HTML is wanted more than JSON. A client that takes anything, or both alike, is a program.

    Source: RFC 9110, 12.5.1.
    """
    ranges = dict(_media_range(part) for part in accept.lower().split(","))
    return _weight(ranges, "text/html") > _weight(ranges, "application/json")


def page_routes(has_docs: bool = True, root_path: str = "") -> list[Route]:
    """The routes. Without `has_docs`, when the server does not describe its routes, `/docs` does not redirect to them.

    `root_path` is the path under which a proxy shows the page, if there is one, such as `/llm`.
    """

    @get("/", include_in_schema=False)
    def page(request: Request) -> Response[bytes]:
        if not wants_html(request.header(b"accept")):
            return Response(RUNNING, media_type=TEXT)
        if root_path and unquote_to_bytes(request.scope["raw_path"]) == root_path.encode():
            # From /llm a browser would look for the page's files below /.
            query = request.scope["query_string"].decode("latin-1")
            target = f"./{root_path.rpartition('/')[2]}/" + (f"?{query}" if query else "")
            return Response(b"", status_code=307, headers={"location": target, "vary": "accept"})
        return _answer(request, INDEX)

    @get(PREFIX + "{name:path}", include_in_schema=False)
    def page_file(request: Request, name: FromPath[str]) -> Response[bytes]:
        return _answer(request, name)

    @get("/docs", include_in_schema=False)
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


def _answer(request: Request, name: str) -> Response[bytes]:
    """The file, or a 304 where the browser's copy is still the same.

    Raises:
        UnknownRouteError: there is no such file.
    """
    file = page_files().get(name)
    if file is None:
        raise UnknownRouteError
    headers = {**HEADERS, "etag": file.etag}
    if name == INDEX:
        headers["vary"] = "accept"
    known = {tag.strip().removeprefix("W/") for tag in request.header(b"if-none-match").split(",")}
    if file.etag in known:
        return Response(b"", status_code=304, headers=headers, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)


def _media_range(part: str) -> tuple[str, float]:
    """A media range without its parameters, and its weight; of weight 0 where that cannot be read."""
    media, *parameters = (word.strip() for word in part.split(";"))
    weights = [text.removeprefix("q=").strip() for text in parameters if text.startswith("q=")]
    if not weights:
        return media, 1.0
    return media, float(weights[0]) if _WEIGHT.fullmatch(weights[0]) else 0.0


def _weight(ranges: dict[str, float], media: str) -> float:
    """The weight of the range that fits this type best; 0 where none does."""
    kind = media.partition("/")[0]
    return next((ranges[name] for name in (media, f"{kind}/*", "*/*") if name in ranges), 0.0)
