"""How the page's files are answered: to whom, with which policy, and when the browser's copy is enough."""

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.page.page_files import CONTENT_SECURITY_POLICY, page_files, wants_html
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.edge.test_gateway import BEARER, ring
from tests.frontend.serving import answering, in_process

STATIC = Path(str(resources.files("pyllm.frontend.page") / "static"))
FILES = {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.is_file()}
HTML = {"accept": "text/html,application/xhtml+xml"}


async def test_the_page_is_for_browsers_and_programs_get_a_line(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        page = await frontend.http.get("/", headers=HTML)
        program = await frontend.http.get("/", headers={"accept": "*/*"})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["vary"] == "accept"
    assert page.content == FILES["index.html"].read_bytes()
    assert (program.status_code, program.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert program.text.startswith("pyllm is running")


async def test_a_browser_may_say_so_in_several_headers(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        page = await frontend.http.get("/", headers=[("accept", "application/json;q=0.5"), ("Accept", "TEXT/html")])
        data = await frontend.http.get("/", headers={"accept": "application/json, text/html;q=0.9"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert data.text.startswith("pyllm is running")


async def test_below_a_path_of_a_proxy_the_page_has_a_slash_at_its_end(tokenizer: Tokenizer) -> None:
    server = ServerConfig(root_path="/apps/llm")
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        for path, target in {"/apps/llm": "./llm/", "/apps/llm?theme=dark": "./llm/?theme=dark"}.items():
            answer = await frontend.http.get(path, headers=HTML)
            assert (answer.status_code, answer.headers["location"]) == (307, target)
            assert answer.url.join(target).path == "/apps/llm/"
            assert (await frontend.http.head(path, headers=HTML)).status_code == 307
        for path in ("/apps/llm/", "/"):  # The proxy may have taken the path away.
            assert (await frontend.http.get(path, headers=HTML)).content == FILES["index.html"].read_bytes()
        assert (await frontend.http.get("/apps/llm", headers={"accept": "*/*"})).text.startswith("pyllm is running")


async def test_every_file_has_its_type_and_the_strict_policy(tokenizer: Tokenizer) -> None:
    types = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
    assert len(FILES) > 20
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for name, path in FILES.items():
            answer = await frontend.http.get(f"/page/{name}")
            assert answer.status_code == 200, name
            assert answer.headers["content-type"].split(";")[0] == types[path.suffix[1:]]
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.content == path.read_bytes()


def test_the_policy_lets_nothing_in_that_is_not_this_servers() -> None:
    policy = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
async def test_a_browser_that_has_the_file_gets_it_no_second_time(tokenizer: Tokenizer, path: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        first = await frontend.http.get(path, headers=HTML)
        etag = first.headers["etag"]
        for known in (etag, f"W/{etag}", f'"other", {etag}'):
            again = await frontend.http.get(path, headers={**HTML, "if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert (again.headers["etag"], again.headers["cache-control"]) == (etag, "no-cache")
        other = await frontend.http.get(path, headers={**HTML, "if-none-match": '"other"'})
        head = await frontend.http.head(path, headers=HTML)
    assert (other.status_code, other.content) == (200, first.content)
    assert (head.status_code, head.headers["etag"]) == (200, etag)
    assert len({file.etag for file in page_files().values()}) == len(FILES)


async def test_the_old_address_of_the_routes_leads_to_their_view(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.get("/docs")
    assert (answer.status_code, answer.headers["location"]) == (307, "./#/api")


async def test_the_files_need_no_key_and_nothing_else_comes_with_them(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=ring()) as frontend:
        for path in ("/", "/page/app.js", "/page/chat/chat.css"):
            assert (await frontend.http.get(path, headers=HTML)).status_code == 200
            assert (await frontend.http.head(path, headers=HTML)).status_code == 200
            assert (await frontend.http.post(path)).status_code == 401
        for path in (
            "/page",
            "/pages",
            "//page/app.js",
            "/Page/app.js",
            "/page/../v1/models",
            "/v1/models/page/app.js",
        ):
            assert (await frontend.http.get(path, headers=HTML)).status_code == 401, path
        assert (await frontend.http.get("/v1/models", headers=BEARER)).status_code == 200


@pytest.mark.parametrize(
    "name", ["nope.js", "..%2fpage_files.py", "%2e%2e/page_files.py", "chat", "chat/", "%00", "a" * 5000]
)
async def test_what_is_no_file_of_the_page_is_not_found(tokenizer: Tokenizer, name: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.get(f"/page/{name}")
    assert answer.status_code == 404
    assert "CONTENT_SECURITY_POLICY" not in answer.text  # The path itself is in the error.


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "Text/HTML",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",  # Firefox and Chromium
        "text/*",
        "text/html;q=0.2, application/json;q=0.1",
        "application/json;q=0.5,text/html;level=1",
        "text/html , */* ; Q=0.5",
        "text/html;q=0.001",
        "*/*, application/json;q=0",
    ],
)
def test_who_wants_html(accept: str) -> None:
    assert wants_html(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",  # curl, and most libraries
        "application/json",
        "application/json, text/plain, */*",  # axios
        "application/json, text/html;q=0.9",
        "text/html, application/json",
        "text/html;q=0",
        "text/html;q=0, */*",
        "text/html;q=high",
        "text/html;q=2",
        "text/htmlx, xtext/html",
        "text/plain;charset=text/html",
        ";;,=,q=1,/",
    ],
)
def test_who_does_not(accept: str) -> None:
    assert not wants_html(accept)


@given(st.text(st.sampled_from("texthmlapplicationjson/*,;q=.019 \x00\xff"), max_size=60))
def test_no_header_is_an_error(accept: str) -> None:
    assert wants_html(accept) in (True, False)
    assert not wants_html(f"{accept}, application/json;q=1")
