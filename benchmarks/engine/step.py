"""The whole control plane over an empty model: core, one worker and one client, each in its own process."""

import asyncio
import tempfile
import time
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import uvloop
import zmq

from benchmarks.engine import spawned_core
from benchmarks.record import Record, percentiles
from pyllm import SamplingParams
from pyllm._rust import Plan
from pyllm.checkpoint.types import Checkpoint, TokenizerFiles
from pyllm.client.client import EngineClient
from pyllm.client.token_reader import TokenDelta
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.executors.local_workers import ForkedWorkers
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.errors import WorkerDeadError
from pyllm.families import llama
from pyllm.families.config import Config
from pyllm.launch.topology import supervised_fork_server
from pyllm.wire.messages import FinishCode, Sampled

ROWS = 256
CONTEXT = 1024
STEPS = 900
TIMES = "submitted"
ENTRY = "benchmarks.engine.empty_worker:prepare"


def run() -> Iterator[Record]:
    yield percentiles("step.empty_model_us", uvloop.run(measure()), rows=ROWS)


async def measure() -> list[float]:
    """Seconds from commit to commit of the steps in which all rows decode, timed in the core."""
    with tempfile.TemporaryDirectory() as folder:
        config = core_config(folder)
        fork_server = supervised_fork_server(config, ENTRY)
        await fork_server.start(lambda reason: None)
        core = spawned_core.start(config, timed_executor)
        client = await EngineClient.connect(await core.ready(60.0), timeout=60.0)
        try:
            await drain(client)
        finally:
            client.close()
            await core.stop(10.0)
            await fork_server.stop(10.0)
        times = array("d", (Path(folder) / TIMES).read_bytes())
    return [later - earlier for earlier, later in pairwise(times)]


async def drain(client: EngineClient) -> None:
    """Submit all rows, and take their tokens until they end."""
    # Make prompts first: the core would otherwise end the first requests while the last prompts are being drawn.
    random = Random(0)
    prompts = [array("i", random.choices(range(1000), k=CONTEXT)).tobytes() for _ in range(ROWS)]
    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)
    sinks = [CountingSink() for _ in range(ROWS)]
    for sink, prompt in zip(sinks, prompts, strict=True):
        client.submit(prompt, params, sink)
    await asyncio.gather(*(sink.done for sink in sinks))


class CountingSink:
    """A sink that does the least possible with tokens."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_tokens = 0

    def delta(self, index: int, delta: TokenDelta) -> None:
        self.num_tokens += len(delta.tokens)
        if delta.finish != FinishCode.NONE:
            self.done.set_result(None)

    def error(self, error: Exception) -> None:
        self.done.set_exception(error)


class TimedExecutor:
    """The real executor, timed. With one step in flight a step is submitted right after the commit before it."""

    def __init__(self, executor: ProcessExecutor, folder: str) -> None:
        self._executor = executor
        self._path = Path(folder) / TIMES
        self._times = array("d")
        self.start = executor.start
        self.restart = executor.restart
        self.kill = executor.kill
        self.collective = executor.collective

    @property
    def death(self) -> WorkerDeadError | None:
        return self._executor.death

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        if plan.num_rows == plan.num_tokens == ROWS:
            self._times.append(time.perf_counter())
        return self._executor.submit(plan, transfers)

    async def close(self) -> None:
        self._path.write_bytes(self._times.tobytes())
        await self._executor.close()


def timed_executor(config: CoreConfig, context: zmq.Context[zmq.Socket[bytes]]) -> TimedExecutor:
    """The executor of the core's process."""
    return TimedExecutor(ProcessExecutor(config, context, ForkedWorkers(config)), config.socket_folder)


def core_config(folder: str, ranks: int = 1) -> CoreConfig:
    """The configuration of a core with an empty model."""
    engine = engine_config(
        {
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": 2048,
            "max_model_len": 2048,
            "dtype": "float32",
            "served_model_name": "empty",
            "device": "cpu",
            "tensor_parallel_size": ranks,
            "async_scheduling": False,
            "flight_recorder_dir": f"{folder}/crashes",
        }
    )
    sizes = {"vocab_size": 1000, "hidden_size": 2, "intermediate_size": 1, "num_attention_heads": 1}
    counts = {"architectures": ["EmptyForCausalLM"], "num_hidden_layers": 1, "max_position_embeddings": 2048}
    tokenizer = TokenizerFiles(path="", chat_template=None, bos_token="", eos_token="", eos_token_ids=(), num_tokens=0)
    checkpoint = Checkpoint(
        name="empty",
        format="safetensors",
        files=(),
        spec=llama.read(Config(sizes | counts | {"tie_word_embeddings": True})),
        tensors=(),
        tokenizer=tokenizer,
        fingerprint="",
    )
    return spawned_core.configure(folder, engine, checkpoint)
