"""The measured server: its address, model and key, the requests that it understands, its own metrics.

Sends no load. A server's metrics are its mean latencies, from the sums and counts of vLLM's Prometheus histograms
before and after a load, which are exact. Most servers have none.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from pyllm.bench.answer_reading import read_answer
from pyllm.bench.bench_defaults import COMPLETIONS
from pyllm.bench.load_client import NO_CONNECTION, LoadClient
from pyllm.bench.prompt_sets import Prompt
from pyllm.bench.request_metrics import MILLISECONDS, Figures
from pyllm.errors import PyllmError
from pyllm.wire.server_client import (
    KEY_ADVICE,
    REFUSED_KEY,
    SHORT_TIMEOUT,
    UnreachableError,
    list_models,
    open_client,
    unreachable,
)
from pyllm.wire.server_trust import ServerTrust

_BETWEEN_ASKS = 0.1  # seconds
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "itl",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "vllm:e2e_request_latency_seconds": "e2el",
}
_LINE = re.compile(rf"^({'|'.join(_HISTOGRAMS)})_(sum|count)(?:\{{.*\}})? (\S+)", re.MULTILINE)

# Sum and count of each latency in seconds, by (name, "sum" or "count").
Totals = Mapping[tuple[str, str], float]


class Endpoint(msgspec.Struct, frozen=True):
    """A route of a server, and the fields that every request has beside its prompt.

    `base_url` is without `/v1`. `fields` go into every body unchanged.
    """

    base_url: str
    path: str = COMPLETIONS
    chat: bool = False
    model: str = ""
    api_key: str = ""
    headers: Mapping[str, str] = {}
    fields: Mapping[str, Any] = {}
    trust: ServerTrust = ServerTrust()

    def client(self) -> LoadClient:
        """A new client of the server, without a connection yet."""
        return LoadClient(self.base_url, trust=self.trust)

    def http(self) -> httpx2.AsyncClient:
        """A new client for requests that are not measured."""
        # With a transport of its own it asks no proxy of the environment, as the measured client.
        transport = httpx2.AsyncHTTPTransport(verify=self.trust.verify())
        client = open_client(self.base_url, self.api_key, timeout=SHORT_TIMEOUT, transport=transport)
        client.headers.update(self.headers)
        return client

    def request(self, prompt: Prompt) -> bytes:
        """Head and body of a streaming request for the prompt."""
        content: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt.text}]} if self.chat else {"prompt": prompt.text}
        )
        body = msgspec.json.encode(
            {
                "model": self.model,
                **content,
                "max_tokens": prompt.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self.fields,
            }
        )
        url = urlsplit(self.base_url)
        headers = {"Host": url.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        headers["Content-Length"] = str(len(body))
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        lines = [f"{name}: {value}" for name, value in [*headers.items(), *self.headers.items()]]
        return "\r\n".join([f"POST {url.path}{self.path} HTTP/1.1", *lines, "", ""]).encode() + body


async def find_model(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its server's first model, if it has none yet.

    Raises:
        PyllmError: no server answers there, it refuses the key, or it lists no model.
    """
    if endpoint.model:
        return endpoint
    names = await _models(endpoint)
    if not names:
        raise PyllmError(f"{endpoint.base_url} lists no model: give --model")
    return msgspec.structs.replace(endpoint, model=names[0])


async def wait_until_ready(endpoint: Endpoint, seconds: float) -> None:
    """Ask for the list of models until the server answers, with any status, or `seconds` have passed."""
    async with endpoint.http() as http:
        with suppress(TimeoutError):  # The next request reports the problem.
            async with asyncio.timeout(seconds):
                while True:
                    with suppress(httpx2.TransportError):
                        await http.get("/v1/models")
                        return
                    await asyncio.sleep(_BETWEEN_ASKS)


async def warm_up(endpoint: Endpoint, prompts: list[Prompt]) -> None:
    """Send a few requests, one after the other, which are not measured.

    Raises:
        PyllmError: one of them failed; a load would fail, too.
    """
    with endpoint.client() as client:
        for prompt in prompts:
            record = read_answer(0, 0.0, await client.send(endpoint.request(prompt)))
            if record.error:
                raise PyllmError(await _explained(endpoint, record.error))


async def read_totals(endpoint: Endpoint) -> Totals:
    """Sum and count of each latency in seconds, over all labels; empty where the server has no such metrics."""
    try:
        async with endpoint.http() as http:
            response = await http.get("/metrics")
    except httpx2.TransportError:
        return {}
    return parse_totals(response.text) if response.status_code == httpx2.codes.OK else {}


def parse_totals(text: str) -> Totals:
    """Sum and count of each latency in a text of Prometheus' format."""
    totals: dict[tuple[str, str], float] = {}
    for name, part, value in _LINE.findall(text):
        key = _HISTOGRAMS[name], part
        totals[key] = totals.get(key, 0.0) + float(value)
    return totals


def server_figures(before: Totals, after: Totals, num_single: int) -> Figures:
    """The mean latencies between two readings, in milliseconds.

    `num_single` answers had one token. vLLM counts each as 0 s per token, clients do not: TPOT leaves them out.
    """
    figures: Figures = {}
    for metric in _HISTOGRAMS.values():
        number = after.get((metric, "count"), 0.0) - before.get((metric, "count"), 0.0)
        if metric == "tpot":
            number -= num_single
        if number > 0:
            seconds = after[metric, "sum"] - before.get((metric, "sum"), 0.0)
            figures[f"server_mean_{metric}_ms"] = seconds / number * MILLISECONDS
    return figures


async def _explained(endpoint: Endpoint, error: str) -> str:
    if error.startswith(NO_CONNECTION):
        return str(unreachable(endpoint.base_url, error))
    text = f"{endpoint.base_url}{endpoint.path} failed on a first request: {error}"
    if error.startswith(tuple(f"HTTP {status}" for status in REFUSED_KEY)):
        return f"{text}; {KEY_ADVICE}"
    if error.startswith("HTTP 404") and (names := await _models(endpoint)):
        return f"{text}; the server lists the models {', '.join(names)}"
    return text


async def _models(endpoint: Endpoint) -> list[str]:
    async with endpoint.http() as http:
        try:
            return await list_models(http)
        except UnreachableError:
            raise
        except PyllmError as error:
            raise PyllmError(f"{error}; or name the model by --model") from None
