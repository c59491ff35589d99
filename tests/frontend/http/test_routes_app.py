"""The application that the routes are in."""

import httpx
from litestar import delete, get, post
from litestar.params import FromPath

from pyllm.frontend.http.routes_app import RoutesApp


@get("/things/{name:str}")
async def show(name: FromPath[str]) -> str:
    return name


@delete("/things/{name:str}", status_code=200)
async def remove(name: FromPath[str]) -> str:
    return name


@post(["/things", "/more"])
async def make() -> str:
    return "made"


async def test_options_tells_the_methods_of_all_handlers_of_a_path() -> None:
    app = RoutesApp([show, make, remove], openapi_config=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for path, methods in {"/things/a": "DELETE, GET, OPTIONS", "/things": "OPTIONS, POST"}.items():
            told = await http.options(path)
            assert (told.status_code, told.headers["allow"], told.content) == (204, methods, b"")
        answers = [await http.get("/things/a"), await http.delete("/things/b"), await http.post("/more")]
    assert [answer.text for answer in answers] == ["a", "b", "made"]


async def test_each_application_tells_the_methods_of_its_own_routes() -> None:
    for handlers, methods in (([show, remove], "DELETE, GET, OPTIONS"), ([show], "GET, OPTIONS")):
        app = RoutesApp(handlers, openapi_config=None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert (await http.options("/things/a")).headers["allow"] == methods
