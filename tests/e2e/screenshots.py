"""The pictures of the page that the documents show: `python -m tests.e2e.screenshots FOLDER` writes them anew."""

import sys
import threading
from pathlib import Path

from tests.browser import PHONE, Browser, chromium
from tests.e2e.server import Server, until

SIZE = (1200, 760)
QUESTION = "Write a Python function that adds two numbers. Then show how it is called."
NUM_STREAMS = 6
LOAD_TOKENS = 900


def main(folder: Path) -> None:
    """Start a server with the embedded model, use the page, and take its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with Server() as server, chromium() as browser:
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
        browser.find(".tokens").send_keys("")
        browser.run("document.querySelector('.token:nth-child(3)').dispatchEvent(new Event('pointerover', {bubbles: true}))")
        browser.run("document.querySelector('.token-view').scrollIntoView()")
        take(browser, folder / "tokens.png")
        browser.resize(SIZE, "dark")
        browser.run("location.hash = '#/engine'")
        browser.find(".figures-row")
        streams = [threading.Thread(target=load, args=(server, number)) for number in range(NUM_STREAMS)]
        for stream in streams:
            stream.start()
        until(lambda: server.metric("vllm:request_success_total") > NUM_STREAMS, "the load to end")
        take(browser, folder / "engine.png")
        for stream in streams:
            stream.join()


def load(server: Server, number: int) -> None:
    """Long answers, one after another."""
    for length in range(LOAD_TOKENS, 0, -LOAD_TOKENS // 3):
        server.complete(f"Chapter {number}. Once upon a time", max_tokens=length, ignore_eos=True)


def take(browser: Browser, path: Path) -> None:
    """A picture of what is shown now."""
    assert browser.driver.save_screenshot(str(path)), path
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
