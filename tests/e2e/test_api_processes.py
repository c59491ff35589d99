"""`pyllm serve --api-server-count 2`: one port, one core, one state, whichever process answers."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.server import DEADLINE, Server, until

BODY = {"prompt": "The sea is", "max_tokens": 48, "ignore_eos": True, "stream": True}


def ask(server: Server, **headers: str) -> httpx.Response:
    """By a connection of its own, so that any process may get it."""
    with httpx.Client(base_url=server.address, timeout=DEADLINE) as http:
        answer = http.post("/v1/completions", json=BODY, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer


def test_two_processes_are_one_server() -> None:
    with Server("--api-server-count", "2") as server:
        titles = {process.cmdline()[0] for process in server.tree[1:]}
        assert titles >= {"pyllm::api-0", "pyllm::api-1", "pyllm::state", "pyllm::core-0"}
        with ThreadPoolExecutor(8) as threads:
            answers = [*threads.map(lambda _: ask(server, **{"idempotency-key": "one"}), range(8))]
        assert len({answer.content for answer in answers}) == 1
        whole = answers[0].text
        ids = re.findall("^id: (.*)$", whole, re.MULTILINE)
        events = whole.split("\n\n")
        places = [0, *(len(ids) * part // 4 for part in (1, 2, 3))]
        with ThreadPoolExecutor(4) as threads:
            rests = [*threads.map(lambda place: ask(server, **{"last-event-id": ids[place]}).text, places)]
        texts = ["".join(re.findall('"text":"(.*?)"', text)) for text in (whole, *rests)]
        heads = ["".join(re.findall('"text":"(.*?)"', "\n\n".join(events[: place + 1]))) for place in places]
        assert [head + rest for head, rest in zip(heads, texts[1:], strict=True)] == [texts[0]] * 4
        # The answer with a key was generated once, the others each; every scrape tells of all, soon.
        until(lambda: server.metric("vllm:generation_tokens_total") == 5 * 48, "the counters of both processes")
        assert server.stop(signal.SIGTERM) == 0
        assert server.orphans() == []
