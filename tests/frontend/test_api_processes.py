"""Several API processes with the state that they share: what one began, another goes on with when it is killed."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pyllm.config.process_config import SharedConfig, StateConfig
from pyllm.supervision import child_process
from pyllm.wire.listeners import bind_listener
from pyllm.wire.messages import ClientMessage, Heartbeat, Submit
from tests.client.fake_core import ScriptedCore
from tests.client.zmq_core import ZmqCore
from tests.frontend.api_config import api_config
from tests.frontend.text import tiny_tokenizers
from tests.waiting import until

TEXT = "Hello world, how is the sea? "
PATH = "/v1/completions"
BODY = {"prompt": "x", "stream": True, "max_tokens": 40}
KEY = {"idempotency-key": "key"}


class Processes:
    """Two API processes, each of which meets a core of its own with the same script."""

    def __init__(
        self, cores: list["Beating"], apis: list[child_process.ChildProcess], clients: list[httpx.AsyncClient]
    ):
        self.cores = cores
        self.apis = apis
        self.clients = clients


class Beating(ScriptedCore):
    """Says its script, but for the first `num_steps` only, if they are given; and that it lives."""

    def __init__(self, tokens: list[int], num_steps: int = -1) -> None:
        super().__init__(lambda prompt, sample: tokens)
        self.num_left = num_steps

    def handle(self, message: ClientMessage) -> None:
        super().handle(message)
        if isinstance(message, Heartbeat):
            self.say(message)

    def _step(self) -> None:
        self.paused = self.num_left == 0
        self.num_left -= 1
        super()._step()


@asynccontextmanager
async def two_processes(folder: Path, num_steps: int = -1) -> AsyncGenerator[Processes, None]:
    tokens = [*tiny_tokenizers.byte_level().encode(TEXT).ids, 0]
    cores = [Beating(tokens, num_steps), Beating(tokens)]
    address, state_address = f"ipc://{folder}/core-0", f"ipc://{folder}/state"
    async with AsyncExitStack() as stack:
        children = [child_process.spawn("the state", "state")]
        children[0].configure(StateConfig(shared=SharedConfig(core_addresses=(address,)), bind=state_address))
        children[0].watch()
        await stack.enter_async_context(ZmqCore(cores[0], address, cores[1]))
        clients = []
        for index in range(len(cores)):
            listener = stack.enter_context(bind_listener("127.0.0.1", 0))
            config = api_config(folder, address, index=index, state_address=state_address)
            children.append(child_process.spawn(f"API process {index}", "api", listener.fileno()))
            children[-1].configure(config)
            children[-1].watch()
            if index == 0:
                await children[-1].ready(60)  # The first core is the one that it meets.
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            clients.append(await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60)))
        try:
            for child in children:
                await child.ready(60)
            yield Processes(cores, children[1:], clients)
            for child in reversed(children):  # as the supervisor does: whom others need ends last
                if not child.exited.done():
                    assert await child.stop(30) == 0
        finally:
            for child in children:
                child.signal(signal.SIGKILL)
                await child.exited


def text_of(stream: str) -> str:
    blocks = [block.rpartition("data: ")[2] for block in stream.split("\n\n")[:-1]]
    return "".join(msgspec.json.decode(block)["choices"][0]["text"] for block in blocks if block != "[DONE]")


async def test_what_a_killed_process_streamed_goes_on_at_another(tmp_path: Path) -> None:
    async with two_processes(tmp_path, num_steps=5) as processes:
        one, two = processes.clients
        body = BODY | {"max_tokens": 100}
        async with one.stream("POST", PATH, json=body, headers={"accept": "text/event-stream"}) as first:
            received = await anext(first.aiter_text())
            keyed = asyncio.create_task(one.post(PATH, json=body, headers=KEY))
            await until(lambda: len(processes.cores[0].sent(Submit)) == 2)
            attached = asyncio.create_task(two.post(PATH, json=body, headers=KEY))
            processes.apis[0].signal(signal.SIGKILL)
            await processes.apis[0].exited
        event = received.split("\n\n")[-2].partition("\n")[0].removeprefix("id: ")
        rest = await two.post(PATH, json=body, headers={"last-event-id": event})
        assert text_of(received + rest.text) == TEXT
        assert rest.text.endswith("data: [DONE]\n\n")
        # The one with a key, which nobody heard of but the state, is run by the process that was told of it.
        assert text_of((await attached).text) == TEXT
        assert (await two.post(PATH, json=body, headers=KEY)).content == (await attached).content
        await asyncio.gather(keyed, return_exceptions=True)
    seeds = [[submit.seed for submit in core.sent(Submit)] for core in processes.cores]
    assert sorted(seeds[0]) == sorted(seeds[1])


async def test_a_key_is_known_to_all_and_so_are_the_counters(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as processes:
        answers = await asyncio.gather(*(client.post(PATH, json=BODY, headers=KEY) for client in processes.clients * 3))
        assert len({answer.content for answer in answers}) == 1
        assert sum(len(core.sent(Submit)) for core in processes.cores) == 1
        for client in processes.clients:
            assert (await client.post(PATH, json=BODY)).status_code == 200
        # A process tells what it counted twice a second.
        num_tokens = processes.cores[1].script([], 0)
        while await generated(processes.clients[0]) < 3 * len(num_tokens):
            pass
        assert await generated(processes.clients[1]) == await generated(processes.clients[0])


async def test_each_process_remembers_what_all_have_counted(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as processes:
        for client in processes.clients:
            assert (await client.post(PATH, json=BODY)).status_code == 200
        num_tokens = 2 * len(processes.cores[1].script([], 0))
        for client in processes.clients:
            while (looks := await remembered(client, "vllm:generation_tokens_total"))[-1] < num_tokens:
                pass
            assert looks == sorted(looks)
            assert looks[-1] == num_tokens


async def remembered(client: httpx.AsyncClient, name: str) -> list[float]:
    series = (await client.get("/metrics/history")).json()["series"]
    return [float(value) for value in series.get(f'{name}{{engine="0"}}', [0.0])]


async def generated(client: httpx.AsyncClient) -> float:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    (family,) = [family for family in families if family.name == "vllm:generation_tokens"]
    return family.samples[0].value


async def test_ignored_fields_are_counted_in_all_processes_together(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as processes:
        for number, client in enumerate(processes.clients, start=1):
            for _ in range(number):
                body = {"prompt": "x", "max_tokens": 1, "nope": 1, f"only{number}": 1}
                assert (await client.post(PATH, json=body)).status_code == 200
        counted = []
        for client in processes.clients:
            families = text_string_to_metric_families((await client.get("/metrics")).text)
            samples = [
                sample for family in families if family.name == "pyllm:ignored_fields" for sample in family.samples
            ]
            counted.append({sample.labels["field"]: sample.value for sample in samples})
    assert counted[-1] == {"nope": 3, "only1": 1, "only2": 2}
