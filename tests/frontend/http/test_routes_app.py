"""The application that the routes are in: which route answers, and with which arguments."""

from typing import Annotated, Any

import httpx
import msgspec
import pytest

from pyllm.errors import RequestError
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import ForbiddenError, describe, failure_headers
from pyllm.frontend.http.routes_app import RoutesApp
from pyllm.frontend.http.routing import FromPath, JSONBody, QueryParameter, Request, Response, delete, get, post

Limit = Annotated[int | None, QueryParameter("limit", ge=1, le=9)]


@get("/things/{name:str}")
async def show(name: FromPath[str], limit: Limit = None) -> list[Any]:
    return [name, limit]


@delete("/things/{name:str}")
def remove(name: FromPath[str]) -> str:
    return name


@post(["/things", "/more"], status_code=201)
async def make(request: Request, data: JSONBody[dict[str, int]]) -> list[Any]:
    return [request.header(b"x-a"), request.query, data]


@get("/things/fixed")
def fixed() -> Response[bytes]:
    return Response(b"fixed", media_type="text/plain", headers={"X-B": "b"})


@get("/files/{path:path}")
def file(path: FromPath[str]) -> str:
    return path


@get("/fails/{when:str}")
def fail(when: FromPath[str]) -> ASGIApp:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if when == "late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RequestError("refused", "when")

    return answer


@get("/guarded")
def guarded() -> None:
    raise AssertionError("the guard lets nobody in")


def keep_out(scope: Any) -> None:
    raise ForbiddenError(scope["path"])


guarded.guard = keep_out

ROUTES = [show, remove, make, fixed, file, fail, guarded]


async def decode(request: Request, kind: Any) -> Any:
    return msgspec.json.decode(await request.body(), type=kind)


def answer_error(request: Request, error: Exception) -> Response[str]:
    failure = describe(error)
    headers = {name.decode(): value.decode() for name, value in failure_headers(failure)}
    return Response(failure.text, status_code=failure.status, headers=headers)


async def ask(method: str, path: str, **options: Any) -> httpx.Response:
    app = RoutesApp(ROUTES, decode, answer_error)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        return await http.request(method, path, **options)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/things/a", 200, ["a", None]),
        ("GET", "/things/a/", 200, ["a", None]),
        ("GET", "/things//a?limit=3", 200, ["a", 3]),
        ("GET", "/things/a%20b?limit=3&limit=4&other=1", 200, ["a b", 4]),
        ("GET", "/things/a?limit=10", 400, "limit in the query: Expected `int` <= 9."),
        ("GET", "/things/a?limit=", 400, "limit in the query: Expected `int`, got `str`."),
        ("DELETE", "/things/b", 200, "b"),
        ("GET", "/files/a/b.js", 200, "a/b.js"),
        ("GET", "/files", 404, "There is no route /files."),
        ("GET", "/things/a/b", 404, "There is no route /things/a/b."),
        ("POST", "/things", 400, "The request has no body; send a JSON object."),
        ("GET", "/fails/early", 400, "refused"),
        ("GET", "/guarded", 403, "/guarded"),
    ],
)
async def test_a_route_by_path_and_method(method: str, path: str, status: int, said: object) -> None:
    answer = await ask(method, path)
    assert (answer.status_code, answer.json()) == (status, said)
    assert answer.headers["content-type"] == "application/json"


async def test_the_body_and_the_request() -> None:
    for path in ("/things?b=c", "/more?b=c"):
        answer = await ask("POST", path, json={"a": 1}, headers=[("x-a", "1"), ("x-a", "2")])
        assert (answer.status_code, answer.json()) == (201, ["1,2", {"b": "c"}, {"a": 1}])


async def test_an_exact_path_comes_before_a_parameter_and_an_answer_is_sent_as_it_is() -> None:
    answer = await ask("GET", "/things/fixed")
    assert (answer.text, answer.headers["content-type"]) == ("fixed", "text/plain; charset=utf-8")
    assert (answer.headers["x-b"], answer.headers["content-length"]) == ("b", "5")


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/things/a", "DELETE, GET, OPTIONS"), ("/things", "OPTIONS, POST"), ("/things/fixed", "GET, OPTIONS")],
)
async def test_options_tells_the_methods_of_all_routes_of_a_path(path: str, methods: str) -> None:
    told = await ask("OPTIONS", path)
    assert (told.status_code, told.headers["allow"], told.content) == (204, methods, b"")


async def test_another_method_is_told_those_of_the_path() -> None:
    answer = await ask("PUT", "/things/a")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, OPTIONS")


async def test_an_answer_that_has_begun_breaks_off() -> None:
    with pytest.raises(RequestError, match="refused"):
        await ask("GET", "/fails/late")
