"""`pyllm serve` with the embedded model and defaults: seconds from start to ready, and memory of a filled KV cache."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import psutil

from benchmarks.record import Record

RUNS = 3
# 512 MiB of bfloat16 KV cache hold 23,301 tokens of the embedded model; so many prompts of this length fill it.
PROMPTS, PROMPT_TOKENS = 4, 6000


def run() -> Iterator[Record]:
    seconds = []
    for measured in range(RUNS + 1):
        begin = time.perf_counter()
        with Server() as server:
            if measured > 0:  # the first run brings the files into the page cache
                seconds.append(time.perf_counter() - begin)
            if measured == RUNS:
                yield {"name": "startup.ready_s", "value": round(sorted(seconds)[RUNS // 2], 2), "unit": "s"}
                yield {"name": "startup.memory_idle_mb", "value": server.memory(), "unit": "MB"}
                server.fill_kv_cache()
                yield {"name": "startup.memory_mb", "value": server.memory(), "unit": "MB"}


class Server:
    """A server on a free port, ready when the `with` block begins."""

    def __init__(self, *flags: str) -> None:
        self._command = [sys.executable, "-m", "pyllm", "serve", "--port", "0", *flags]

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"http://\S+?:\d+", line)
        assert match is not None, f"the server did not become ready: {line!r}"
        self.address = match.group()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.communicate()

    def memory(self) -> float:
        """Proportional set size of all processes, in MB (10**6 bytes)."""
        return round(sum(process.memory_full_info().pss for process in self.processes()) / 1e6, 1)

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def fill_kv_cache(self) -> None:
        """Compute prompts of as many tokens as the KV cache holds."""
        for first in range(PROMPTS):
            body = {"model": self.model(), "prompt": [first + 10, *[20] * (PROMPT_TOKENS - 1)], "max_tokens": 1}
            self._request("/v1/completions", body)

    def model(self) -> str:
        return str(self._request("/v1/models")["data"][0]["id"])

    def _request(self, path: str, body: object = None) -> dict[str, list[dict[str, object]]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return dict(json.load(response))
