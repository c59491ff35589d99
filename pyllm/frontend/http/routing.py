"""Routes are functions: `get`, `post` and the like say for which requests, the parameters say what each takes of them.

Knows no route by name, no error's answer, and not how a body is decoded.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import NoneType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.http.asgi import Receive, Scope, Send

T = TypeVar("T")

JSON, TEXT = "application/json", "text/plain"

_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")


class QueryParameter(NamedTuple):
    """A parameter of the query by the name that it has there, with its range."""

    name: str
    ge: float | None = None
    le: float | None = None


class _FromPath:
    """A part of the path."""


class _JsonBody:
    """The body, decoded as this type."""


FromPath = Annotated[T, _FromPath]
JSONBody = Annotated[T, _JsonBody]


class ResponseSpec(NamedTuple):
    """The body of an answer in the OpenAPI document: a type, or None where it has none."""

    kind: Any
    media_type: str = JSON


class Request:
    """One request of a route."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self._body: bytes | None = None

    def header(self, name: bytes) -> str:
        """A header by its name in lower case; its values joined by commas, empty where there is none."""
        return ",".join(value.decode("latin-1") for given, value in self.scope["headers"] if given == name)

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters of the query, of several with one name the last."""
        return dict(self.query_pairs)

    @cached_property
    def query_pairs(self) -> list[tuple[str, str]]:
        """The parameters of the query with their values, in order; a name may be there several times."""
        return parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)

    async def body(self) -> bytes:
        """The whole body; raises what the edge raises if it does not come, or is too large."""
        if self._body is None:
            parts, more = [], True
            while more:
                message = await self._receive()
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
            self._body = b"".join(parts)
        return self._body


class Response(Generic[T]):
    """An answer as an ASGI application: `content` is sent as it is if it is bytes, and else as JSON; None is empty."""

    def __init__(
        self, content: T, *, status_code: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self._body = content if isinstance(content, bytes) else b"" if content is None else msgspec.json.encode(content)
        self._status = status_code
        is_plain = media_type.startswith("text/") and "charset" not in media_type
        kind = f"{media_type}; charset=utf-8" if is_plain else media_type
        fixed = {} if status_code == 204 else {"content-type": kind, "content-length": str(len(self._body))}
        self._headers = [
            (name.lower().encode(), value.encode()) for name, value in {**fixed, **(headers or {})}.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


class Route:
    """A function and the requests that it answers: with a `Response`, another ASGI application, or an object as JSON.

    `body` is the type of its parameter `data`, None without one, and `query` has its parameters of the query with
    their types and defaults. `guard` raises where a request may not use the route. `options` add to the OpenAPI
    document what the function does not show.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        methods: Sequence[str],
        paths: Sequence[str],
        *,
        status_code: int = 200,
        summary: str = "",
        responses: Mapping[int, ResponseSpec] | None = None,
        include_in_schema: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.methods, self.paths = methods, paths
        self.status_code = status_code
        self.summary = summary
        self.responses = responses or {}
        self.include_in_schema = include_in_schema
        self.options = options or {}
        self.guard: Callable[[Scope], None] | None = None
        signature = inspect.signature(fn)
        self.returned = signature.return_annotation
        self.takes_request = "request" in signature.parameters
        self.body: Any = None
        self.query: dict[str, tuple[QueryParameter, Any, Any]] = {}
        for name, parameter in signature.parameters.items():
            for mark in getattr(parameter.annotation, "__metadata__", ()):
                kind = parameter.annotation.__origin__
                if mark is _JsonBody:
                    self.body = kind
                elif isinstance(mark, QueryParameter):
                    self.query[name] = mark, _limited(kind, mark), parameter.default

    def from_query(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The arguments that the query gives; the others keep their defaults.

        Raises:
            RequestError: one is not of its type, or out of its range.
        """
        arguments = {}
        for name, (parameter, kind, _) in self.query.items():
            if (text := query.get(parameter.name)) is not None:
                try:
                    arguments[name] = msgspec.convert(text, kind, strict=False)
                except msgspec.ValidationError as error:
                    raise RequestError(f"{parameter.name} in the query: {error}.", parameter.name) from None
        return arguments


def route(paths: str | Sequence[str], methods: Sequence[str], **options: Any) -> Callable[[Callable[..., Any]], Route]:
    """Make a route of a function; `options` are those of `Route`."""
    return lambda fn: Route(fn, methods, [paths] if isinstance(paths, str) else paths, **options)


get = partial(route, methods=["GET"])
post = partial(route, methods=["POST"])
patch = partial(route, methods=["PATCH"])
delete = partial(route, methods=["DELETE"])


def _limited(kind: Any, parameter: QueryParameter) -> Any:
    """The type within the range; where None stands for a parameter that is left out, the other type."""
    if get_origin(kind) is Literal:
        return kind
    given = next((each for each in get_args(kind) if each is not NoneType), kind)
    return Annotated[given, msgspec.Meta(ge=parameter.ge, le=parameter.le)]


def path_format(path: str) -> str:
    """The path of a route without the types of its parameters: `/admin/requests/{name}`."""
    return _PARAMETER.sub(r"{\1}", path)


def path_parameters(path: str) -> list[str]:
    """The names of its parameters."""
    return [match[1] for match in _PARAMETER.finditer(path)]


class PathTable(Generic[T]):
    """Values by the paths of routes; one without parameters comes before those that fit by theirs."""

    def __init__(self, values: Mapping[str, T]) -> None:
        self._exact = {path: value for path, value in values.items() if "{" not in path}
        self._patterns = [(_path_pattern(path), value) for path, value in values.items() if "{" in path]

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """The value of the route that a path belongs to, and the path's parameters; slashes at its end do not count."""
        path = path.rstrip("/") or "/"
        if path in self._exact:
            return self._exact[path], {}
        for pattern, value in self._patterns:
            if match := pattern.fullmatch(path):
                return value, match.groupdict()
        return None


def _path_pattern(path: str) -> re.Pattern[str]:
    """The pattern of a route's path, with a group for each parameter; one of type `path` may have slashes."""
    parts, end = [], 0
    for match in _PARAMETER.finditer(path):
        parts += [re.escape(path[end : match.start()]), f"(?P<{match[1]}>{'.+' if match[2] == 'path' else '[^/]+'})"]
        end = match.end()
    return re.compile("".join([*parts, re.escape(path[end:])]), re.DOTALL)
