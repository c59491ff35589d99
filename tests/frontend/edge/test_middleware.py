import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.frontend.edge.middleware import load_middleware
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.edge.middlewares import Stamp
from tests.frontend.serving import answering, behind_uvicorn, events

HERE = "tests.frontend.edge.middlewares"


async def test_middleware_sees_every_part_of_a_stream(tokenizer: Tokenizer) -> None:
    server = ServerConfig(middleware=(f"{HERE}:outermost", f"{HERE}.Stamp"))
    async with behind_uvicorn(answering(tokenizer, "a b c d"), tokenizer, server=server) as frontend:
        before = Stamp.parts
        body = {"prompt": "x", "max_tokens": 9, "stream": True}
        response = await frontend.http.post("/v1/completions", json=body)
    assert response.headers["x-seen"] == "inner"
    # A part that went straight to the socket would not have been counted.
    assert Stamp.parts - before >= len(events(response.text)) > 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{HERE}.Absent", "cannot import"),
        ("nowhere.Absent", "No module named"),
        ("Absent", "module.Class"),
        (f"{HERE}.of_requests", "functions of a request"),
        ("sys.path", "ASGI application"),
    ],
)
def test_what_is_no_middleware_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_middleware(name)
