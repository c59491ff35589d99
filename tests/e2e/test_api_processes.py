"""`pyllm serve --api-server-count 2`: one port, one core, one state, whichever process answers."""

import contextlib
import json
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


def text_of(stream: str) -> str:
    """What the events of a stream, or of a part of it, say together."""
    chunks = (json.loads(data) for data in re.findall(r"^data: (\{.*)$", stream, re.MULTILINE))
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


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
        texts = [text_of(stream) for stream in (whole, *rests)]
        heads = [text_of("\n\n".join(events[: place + 1])) for place in places]
        assert [head + rest for head, rest in zip(heads, texts[1:], strict=True)] == [texts[0]] * 4
        # The answer with a key was generated once, the others each; every scrape tells of all, soon.
        until(lambda: server.metric("vllm:generation_tokens_total") == 5 * 48, "the counters of both processes")
        goes_on_after_a_crash(server)
        assert server.stop(signal.SIGTERM) == 0
        assert server.orphans() == []


def goes_on_after_a_crash(server: Server) -> None:
    """Whichever API process streams to a client is killed, and another one goes on where it was."""
    drawn = {"temperature": 1, "top_p": 1}  # and not as the model's defaults say
    body = BODY | {"max_tokens": 100} | drawn
    for headers in ({"accept": "text/event-stream"}, {"idempotency-key": "two"}):
        lines: list[str] = []
        with (
            httpx.Client(base_url=server.address, timeout=DEADLINE) as http,
            contextlib.suppress(httpx.RemoteProtocolError),
            http.stream("POST", "/v1/completions", json=body, headers=headers) as answer,
        ):
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 20:
                    server.tree = server.processes()
                    for process in [server.titled(f"pyllm::api-{index}") for index in (0, 1)]:
                        process.kill()
        *_, last = (line.removeprefix("id: ") for line in lines if line.startswith("id: "))
        # What came after the last id has none yet, and is told again.
        seen = lines[: max(place for place, line in enumerate(lines) if line == f"id: {last}") + 2]
        with httpx.Client(base_url=server.address, timeout=DEADLINE) as http:
            rest = http.post("/v1/completions", json=body, headers=headers | {"last-event-id": last})
        assert rest.status_code == 200, rest.text
        pieces = [json.loads(line[6:]) for line in [*seen, *rest.text.splitlines()] if line.startswith("data: {")]
        seed = int(last.split(".")[2], 16)
        whole = server.complete("The sea is", max_tokens=100, ignore_eos=True, seed=seed, **drawn).json()
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole["choices"][0]["text"]
