"""A browser for the page's modules, and the static files without a server of ours."""

import functools
import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.browser import Browser, chromium
from tests.frontend.page.test_page_files import STATIC


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *texts: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Browser]:
    """A browser on the bare document, whose own script is not found, to import modules from by `/NAME.js`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=STATIC)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/index.html")
        yield browser
        browser.open("about:blank")
        browser.problems()  # What the bare document missed is no other test's problem.
        server.shutdown()
        thread.join()
