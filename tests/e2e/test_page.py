"""The page in a browser, over a real server: a conversation, stops and kills, both widths and themes, accessibility."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import PHONE, THEMES, WIDE, Browser, chromium
from tests.e2e.kills import kill_titled
from tests.e2e.server import Server, until

pytestmark = pytest.mark.services
QUESTION = "Tell me a long story about the sea."
LENGTH = {"max_tokens": 80, "min_tokens": 80}
VIEWS = ("chat", "api", "engine")
# Updates of the Engine view in a run of two hours.
NUM_UPDATES = 3600


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--max-num-seqs", "8", "--admin-on-loopback") as started:
        yield started
    assert started.orphans() == []


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Browser]:
    """Closed before its server ends, which it would complain of."""
    with chromium() as started:
        yield started
        assert started.problems() == []


def begin(browser: Browser, server: Server, **parameters: Any) -> None:
    """A new conversation, greedy, and answers of a length that does not depend on the model."""
    settings = {"system": "", "stop": "", "format": "text", "inputs": {}, "tools": "", "toolChoice": "auto"}
    settings |= {"logprobs": False, "topLogprobs": 3, "parameters": {"temperature": 0, **parameters}}
    browser.resize(WIDE)
    if not browser.driver.current_url.startswith(server.address):
        browser.open(server.address)
        browser.find("#composer")
        # A page that is left while it makes its database is kept for "back" by the browser, with the next one waiting.
        browser.run("await (await import('/page/chat/storage.js')).summaries()")
    store = "localStorage.setItem('pyllm.settings', JSON.stringify(arguments[0]));"
    browser.run(store + "localStorage.removeItem('pyllm.conversation')", settings)
    browser.open(server.address)
    browser.find("#composer")


def ask(browser: Browser, text: str = QUESTION) -> None:
    browser.find("#composer").send_keys(text, Keys.ENTER)


def has_ended(browser: Browser) -> bool:
    return bool(browser.all(".message.assistant:last-child:not([aria-busy]) .figures"))


def figures(browser: Browser) -> str:
    return browser.text(".message.assistant:last-child .figures")


def answer(browser: Browser) -> str:
    """What the last conversation's last answer has, as the browser keeps it."""
    script = """
        const { load, summaries } = await import("/page/chat/storage.js");
        const { shownMessages } = await import("/page/chat/conversation.js");
        const [latest] = await summaries();
        return latest ? shownMessages(await load(latest.id)).at(-1).content : "";
    """
    return str(browser.run(script))


def has_words(browser: Browser, number: int) -> bool:
    return len(browser.text(".message.assistant:last-child .prose").split()) >= number


@pytest.fixture(scope="module")
def whole(server: Server) -> str:
    """The answer that nothing disturbs."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **LENGTH}
    with server.http() as http:
        return str(http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


def test_a_conversation_is_kept_with_its_branches(browser: Browser, server: Server) -> None:
    begin(browser, server, max_tokens=8, min_tokens=8)
    ask(browser)
    browser.until(lambda: has_ended(browser), "the answer")
    assert figures(browser).startswith("8 tokens · ")
    assert "tokens/s · first after" in figures(browser)
    assert "8 tokens." in browser.text("#announcements p:last-child")
    ask(browser, "And the mountains?")
    browser.until(lambda: len(browser.all(".message")) == 4 and has_ended(browser), "the second answer")
    browser.find(".message.assistant:last-child [aria-label^='Try again']").click()
    browser.until(lambda: browser.text(".message:last-child .branches") == "2/2" and has_ended(browser), "a branch")
    browser.until(lambda: answer(browser), "the answer being kept")
    browser.open(server.address)
    browser.until(lambda: len(browser.all(".message")) == 4, "the conversation being there again")
    browser.find(".message:last-child [aria-label='Previous branch']").click()
    assert browser.text(".message:last-child .branches") == "1/2"


def test_conversations_are_renamed_found_and_imported(browser: Browser, server: Server, tmp_path: Path) -> None:
    begin(browser, server, **LENGTH)
    ask(browser, "A question about herons")
    browser.until(lambda: has_ended(browser), "the answer ends")
    browser.find(".conversations [aria-current] ~ [aria-label^='Rename']").click()
    field = browser.find("dialog input")
    field.clear()
    field.send_keys("Birds", Keys.ENTER)
    browser.until(lambda: browser.text(".chat-title") == "Birds", "it has its name")
    file = tmp_path / "saved.json"
    file.write_text('{"messages": [{"role": "user", "content": "Old owls"}]}')
    browser.driver.find_element("css selector", ".conversations input[type=file]").send_keys(str(file))
    browser.until(lambda: browser.text(".chat-title") == "Old owls", "it is imported")
    browser.find(".search").send_keys("herons")
    titles = lambda: [each.text for each in browser.all(".conversation")]  # noqa: E731 - it is asked again and again
    browser.until(lambda: titles() == ["Birds"], "it is found by its message")


def test_a_text_file_is_attached(browser: Browser, server: Server, tmp_path: Path) -> None:
    begin(browser, server, **LENGTH)
    (tmp_path / "note.txt").write_text("The heron is grey.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    field = browser.driver.find_element("css selector", ".composer input[type=file]")
    field.send_keys(f"{tmp_path / 'note.txt'}\n{tmp_path / 'picture.png'}")
    browser.until(lambda: browser.text(".attachments") == "note.txt", "it is attached")
    browser.until(lambda: "picture.png: it is no text" in browser.text(".error"), "the other is refused")
    ask(browser, "What colour?")
    browser.until(lambda: has_ended(browser), "the answer ends")
    assert "The heron is grey." in browser.text(".message.user")
    assert browser.text(".attachments") == ""


def test_log_probabilities_are_shown_by_keyboard(browser: Browser, server: Server) -> None:
    begin(browser, server, max_tokens=4, min_tokens=4)
    browser.find(".settings input[type=checkbox]").click()
    ask(browser)
    browser.find("[aria-label^='Log-probabilities']").click()
    browser.find(".tokens").send_keys(Keys.ARROW_RIGHT)
    chosen = browser.text(".token.chosen")
    assert f'"{chosen}"' in browser.text(".token-details")
    assert len(browser.all(".token-details tr")) in (3, 4)  # The token itself need not be one of the likeliest.
    browser.find(".message.assistant [aria-label='The request as code']").click()
    assert '"top_logprobs": 3' in browser.text("dialog pre")
    assert browser.violations() == []


def test_a_tool_is_tried_by_hand(browser: Browser, server: Server) -> None:
    begin(browser, server, max_tokens=24)  # Enough for one call, too few to begin another.
    example = next(each for each in browser.all(".settings button") if each.text == "Take an example")
    browser.run("arguments[0].click()", example)
    browser.run("""
        const select = [...document.querySelectorAll(".settings select")].at(-1);
        select.value = "required";
        select.dispatchEvent(new Event("change"));
    """)
    ask(browser, "What is the weather in Paris?")
    result = browser.find(".results textarea")
    assert browser.text(".call .tool-name") == "get_weather"
    browser.until(lambda: has_ended(browser), "the end of the call")
    assert browser.violations() == []
    result.send_keys("18 degrees, rain")
    browser.find(".results button").click()
    browser.until(lambda: len(browser.all(".message")) == 4 and has_ended(browser), "the answer to the result")
    assert "18 degrees, rain" in browser.text(".message.tool")


def test_a_stop_ends_the_request_and_the_answer_can_go_on(browser: Browser, server: Server, whole: str) -> None:
    begin(browser, server, **LENGTH)
    ask(browser)
    browser.until(lambda: has_words(browser, 3), "a few words")
    browser.find("#composer").send_keys(Keys.ESCAPE)
    browser.until(lambda: has_ended(browser), "the stop")
    until(lambda: server.metric("vllm:num_requests_running") == 0, "the request to end")
    assert "stopped" in figures(browser)
    browser.until(lambda: answer(browser), "the answer being kept")
    assert whole.startswith(answer(browser))
    assert answer(browser) != whole
    browser.find(".message:last-child .small").click()
    browser.until(lambda: has_ended(browser) and answer(browser) == whole, "the rest")


def test_an_answer_goes_on_by_itself_when_processes_are_killed(browser: Browser, server: Server, whole: str) -> None:
    begin(browser, server, **LENGTH)
    ask(browser)
    browser.until(lambda: has_words(browser, 3), "a few words")
    kill_titled(server.process.pid, "pyllm::worker-0-0")
    assert not has_ended(browser)
    browser.until(lambda: has_words(browser, 12), "more words")
    assert "break" not in figures(browser)  # The stream only paused.
    assert browser.problems() == []
    kill_titled(server.process.pid, "pyllm::api-0")
    assert not has_ended(browser)
    browser.until(lambda: has_ended(browser), "the answer")
    assert "went on after" in figures(browser)
    browser.until(lambda: answer(browser) == whole, "the same answer as without the kills")
    assert all("net::ERR" in each for each in browser.problems())  # The browser says that a connection broke.


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_every_view_is_accessible_and_fits_in_both_themes(
    browser: Browser, server: Server, size: tuple[int, int]
) -> None:
    begin(browser, server, max_tokens=8)
    ask(browser)
    browser.until(lambda: has_ended(browser), "the answer")
    for view in VIEWS:
        browser.run("location.hash = arguments[0]", f"#/{view}")
        browser.find(f".{view} h1" if view != "chat" else ".message")
        browser.until(lambda: browser.all(".chat, .route, .figures-row"), "the view")
        for theme in THEMES:
            browser.resize(size, theme)
            assert browser.violations() == [], (view, theme)
        assert view != "chat" or browser.find("#composer").is_displayed()
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), view
        assert browser.run("return document.querySelector('#view').scrollWidth <= innerWidth"), view


def test_the_theme_can_be_chosen(browser: Browser, server: Server) -> None:
    begin(browser, server)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.find("[aria-label='Dark theme']").click()
    dark = browser.run(ground)
    assert light != dark
    browser.open(server.address)
    browser.find("[aria-label='Light theme']").click()
    assert browser.run(ground) == light


def test_the_engine_view_stays_as_large_as_it_is(browser: Browser, server: Server) -> None:
    browser.resize(WIDE)
    browser.open(f"{server.address}/#/api")  # So that no other engine view asks meanwhile.
    browser.find(".route")
    browser.run("""
        const { EngineData } = await import("/page/engine/engine_data.js");
        const { EngineView } = await import("/page/engine/engine_view.js");
        const { parseMetrics } = await import("/page/engine/prometheus.js");
        const text = await (await fetch("/metrics")).text();
        window.look = 0;
        const data = new EngineData(null, () => 1e12 + window.look * 2000);
        for (const name of ["requests", "blocks", "processes", "tenants", "crashes"]) {
            data.snapshot[name] = await (await fetch(`/admin/${name}`)).json();
        }
        const view = new EngineView(data);
        document.querySelector("#view").replaceChildren(view.root);
        window.advance = (number) => {
            for (let each = 0; each < number; each += 1) {
                window.look += 1;
                const grow = (line, name, value) => name + (Number(value) + window.look * 3);
                const grown = text.replace(/^((?!#)\\S*_(?:total|count|sum|bucket)\\S* )(\\S+)$/gm, grow);
                data.take(parseMetrics(grown), { status: window.look % 7 ? "ready" : "not ready" });
                view.draw();
            }
        };
        data.take(parseMetrics(text), { status: "ready" });
        view.draw();
    """)
    browser.run("await new Promise((resolve) => setTimeout(resolve)); window.advance(910)")  # Everything is full then.
    nodes = "return document.querySelectorAll('*').length"
    before, heap = browser.run(nodes), browser.heap()
    for _ in range(4):
        browser.run("window.advance(arguments[0])", NUM_UPDATES // 4)
    assert browser.run(nodes) == before
    assert browser.heap() < 1.1 * heap
    assert browser.run("return document.querySelector('.path').getAttribute('d').length") > 1000
