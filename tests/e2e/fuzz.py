"""`python -m tests.e2e.fuzz [CASES]`: hostile requests to a real server, beside a client whose streams must stay whole.

Prints what it counted as one JSON object; status 0 stands for no answer, be it to what is no HTTP or to who left
early. Fails with the case, as hypothesis has shrunk it, where an answer is a 5xx, a process ends, or a neighbour's text
is not the one that it gets alone.
"""

import json
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, settings

from tests.e2e.server import Server, until
from tests.frontend import hostile
from tests.frontend.hostile import Case

CASES = 10_000
LIMIT = 0.25  # seconds for a case that happens to ask for much; then its client leaves


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    with Server() as server:
        begun = time.monotonic()
        pids = {process.pid for process in server.processes()}
        with _Neighbour(server) as neighbour:
            statuses = _fuzz(server, number)
        until(lambda: server.metric("vllm:num_requests_running") == 0, "what clients left behind to end")
        assert {process.pid for process in server.processes()} == pids, "a process of the server has ended"
        assert neighbour.texts == [neighbour.alone] * len(neighbour.texts), neighbour.texts
        assert neighbour.texts, "no stream of the neighbour's came to its end"
        counted = {
            "name": "fuzz",
            "cases": sum(statuses.values()),
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "neighbour_streams": len(neighbour.texts),
            "seconds": round(time.monotonic() - begun),
        }
    assert server.process.returncode == 0, server.log
    assert "Traceback" not in server.log, server.log
    print(json.dumps(counted))


def _fuzz(server: Server, number: int) -> Counter[int]:
    parts = urlsplit(server.address)
    address = (str(parts.hostname), int(parts.port or 0))
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile.CASES)
    def send(case: Case) -> None:
        begun = time.monotonic()
        answer = hostile.exchange(address, case, LIMIT)
        has_left = not answer and time.monotonic() - begun >= LIMIT
        statuses[0 if has_left else hostile.check(case, answer)] += 1

    send()
    return statuses


class _Neighbour:
    """Asks for the same greedy answer again and again while it is entered; `alone` is what it got before."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask_again)
        self.alone = self._ask()
        self.texts: list[str] = []

    def __enter__(self) -> "_Neighbour":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _ask_again(self) -> None:
        while not self._stopping.is_set():
            try:
                text = self._ask()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the texts
                text = repr(error)
            self.texts.append(text)

    def _ask(self) -> str:
        response = self._server.complete("The sea is", max_tokens=200, ignore_eos=True, stream=True)
        *events, end = response.text.removesuffix("\n\n").split("\n\n")
        assert end == "data: [DONE]", response.text
        return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)


if __name__ == "__main__":
    main()
