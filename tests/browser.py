"""Chromium for tests, without a window."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.services import service_program

# Bounds a broken page; a good one takes a fraction of it.
PATIENCE = 60.0
WIDE, PHONE = (1280, 860), (390, 844)
THEMES = ("light", "dark")


class Browser:
    """A browser with one tab, and what tests ask of it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Load a page anew."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def resize(self, size: tuple[int, int], theme: str = "light") -> None:
        """The size of the page in CSS pixels, and what the system prefers."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """The first element, once there is one that is shown."""
        return self.until(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def all(self, selector: str) -> list[WebElement]:
        """Every element that there is now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of an element, wherever it is scrolled to."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a function's body returns; `await` works in it."""
        wrapped = f"const done = arguments[arguments.length - 1]; (async function () {{ {script} }})"
        wrapped += ".apply(null, arguments).then((value) => done([value]), (error) => done({error: error.stack}));"
        answer = self.driver.execute_async_script(wrapped, *arguments)
        assert isinstance(answer, list), answer["error"]
        return answer[0]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Ask again until it holds; gives what it gave. It does not hold while the page exchanges what it looks at."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return wait.until(lambda _: holds(), f"waited for {what}")

    def problems(self) -> list[str]:
        """What the browser has complained of since the last time: errors, and what the page's policy forbade."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def violations(self) -> list[str]:
        """What axe finds against accessibility, each with the elements."""
        if not self.run("return Boolean(window.axe)"):
            self.driver.execute_script((resources.files("axe_core_python") / "axe.min.js").read_text())
        found = self.run("return (await axe.run()).violations")
        return [f"{each['id']}: {[node['target'] for node in each['nodes']]}" for each in found]

    def heap(self) -> int:
        """Bytes of the page's objects that something still refers to."""
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return int(self.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which is gone afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = service_program("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(service_program("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
