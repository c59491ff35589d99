"""A server with keys, seen by a browser: the page comes without one, and what it shows does not."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.browser import Browser
from tests.frontend.edge.test_gateway import KEY, ring
from tests.frontend.serving import answering, behind_uvicorn

pytestmark = pytest.mark.services


async def shown(tokenizer: Tokenizer, look: Callable[[str], None], **options: Any) -> None:
    """Look at a frontend, from a thread, as the frontend runs in this one."""
    async with behind_uvicorn(answering(tokenizer, "Hello **world**"), tokenizer, **options) as frontend:
        await asyncio.to_thread(look, str(frontend.http.base_url))


async def test_the_key_is_asked_for_and_kept_for_the_tab(tokenizer: Tokenizer, browser: Browser) -> None:
    def look(address: str) -> None:
        browser.open(address)
        field = browser.find("dialog #key")
        assert browser.text("#view h1") == "This server wants a key"
        assert browser.violations() == []
        field.send_keys("wrong\n")
        browser.until(lambda: "Incorrect API key" in browser.text("#view"), "the refusal")
        browser.find("dialog #key").clear()
        browser.find("dialog #key").send_keys(KEY + "\n")
        browser.find("#composer").send_keys("Hi\n")
        browser.until(lambda: browser.text(".prose") == "Hello world", "the answer")
        assert KEY not in browser.run("return JSON.stringify(localStorage)")
        browser.find("[aria-label='The request as code']").click()
        code = browser.text("dialog pre")
        assert "$PYLLM_API_KEY" in code
        assert KEY not in code
        browser.open(address)  # The same tab.
        browser.find("#composer")
        assert not browser.all("dialog")
        browser.run("sessionStorage.clear()")

    await shown(tokenizer, look, keys=ring())
    # The browser itself says that requests were refused, and of nothing else.
    assert [each for each in browser.problems() if "401" not in each] == []


async def test_the_page_works_under_its_policy(tokenizer: Tokenizer, browser: Browser) -> None:
    def look(address: str) -> None:
        browser.open(address)
        browser.find("#composer")
        addresses = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert len(addresses) > 20
        assert all(each.startswith(f"{address}/") for each in addresses)
        assert browser.problems() == []
        # What the policy is for: neither text nor another server's script runs.
        blocked = browser.run("""
            const blocked = [];
            addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
            for (const [name, text] of [["script", "window.ran = 1"], ["style", "a {}"]]) {
                const node = document.createElement(name);
                try { node.textContent = text; document.head.append(node); } catch (error) { blocked.push(error.name); }
            }
            try { document.body.innerHTML = "<b>x</b>"; } catch (error) { blocked.push(error.name); }
            await new Promise((resolve) => setTimeout(resolve, 50));
            return [window.ran ?? null, blocked.length];
        """)
        assert blocked[0] is None
        assert blocked[1] >= 3
        assert browser.problems() != []

    await shown(tokenizer, look)
