"""The pictures of the page that the documents show: `python -m tests.e2e.screenshots FOLDER` writes them anew."""

import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser import PHONE, Browser, chromium
from tests.e2e.server import Server

SIZE = (1200, 760)
QUESTION = "Write a Python function that adds two numbers. Then show how it is called."
NUM_STREAMS = 6
LOAD_TOKENS = 240
TENANTS = ("search", "support", "research")


def main(folder: Path) -> None:
    """Start a server with the embedded model, use the page, and take its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as records, chromium() as browser, server_of(records) as server:
        browser.resize(SIZE)
        browser.open(server.address)
        browser.find("#composer")
        settings = browser.run("return (await import('/page/chat/request.js')).newSettings()")
        settings |= {"parameters": {"temperature": 0, "max_tokens": 200}, "logprobs": True}
        browser.run("localStorage.setItem('pyllm.settings', JSON.stringify(arguments[0]))", settings)
        browser.open(server.address)
        browser.find("#composer").send_keys(QUESTION + "\n")
        browser.find("[aria-label^='Log-probabilities']")
        browser.run("document.querySelector('.scroller').scrollTop = 0")
        take(browser, folder / "chat.png")
        browser.resize(PHONE, "dark")
        take(browser, folder / "phone.png")
        browser.resize(SIZE)
        browser.find("[aria-label^='Log-probabilities']").click()
        point = "document.querySelector('.token.level-2').dispatchEvent(new Event('pointerover', {bubbles: true}))"
        browser.run(point)
        browser.run("document.querySelector('.token-view').scrollIntoView()")
        take(browser, folder / "tokens.png")
        browser.resize(SIZE, "dark")
        browser.run("location.hash = '#/engine'")
        browser.find(".figures-row")
        streams = [threading.Thread(target=load, args=(server, number)) for number in range(NUM_STREAMS)]
        for stream in streams:
            stream.start()
        charts = "[aria-label='Whole requests'] .legend"
        browser.until(lambda: " s" in browser.text(charts), "a request that ended")
        take(browser, folder / "engine.png")
        for stream in streams:
            stream.join()


def server_of(records: str) -> Server:
    """With every panel of the Engine view, and without the crashes of other servers."""
    return Server("--admin-on-loopback", "--flight-recorder-dir", records)


def load(server: Server, number: int) -> None:
    """Long answers, one after another."""
    with server.http() as http:
        for length in range(LOAD_TOKENS, 0, -LOAD_TOKENS // 3):
            body = {"prompt": f"Chapter {number}. Once upon a time", "max_tokens": length, "ignore_eos": True}
            http.post("/v1/completions", json=body, headers={"x-llm-d-inference-fairness-id": TENANTS[number % 3]})


def take(browser: Browser, path: Path) -> None:
    """A picture of what is shown now."""
    assert browser.driver.save_screenshot(str(path)), path
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
