"""The bubbles of a pipeline: the time that its stages wait while streams decode, with layers that take a fixed time.

It has the core, its scheduler, the wire, and four real workers that send hidden states through shared memory; a tiny
random model, whose layers sleep. A bubble is a stage's time outside of its layers:
`python -m benchmarks.engine.pipeline`.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop
import zmq

from benchmarks.engine import spawned_core
from benchmarks.engine.sleeping_worker import LAYER_SECONDS, TIMES
from benchmarks.engine.step import CountingSink
from benchmarks.record import Record
from pyllm import SamplingParams
from pyllm.client.client import EngineClient
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.executors.local_workers import ForkedWorkers
from pyllm.core.executors.multiprocess import ProcessExecutor
from pyllm.launch.resolve import resolve_config
from pyllm.launch.topology import supervised_fork_server
from tests.tiny_model import write_tiny_model

STAGES, LAYERS, STREAMS, TOKENS = 4, 8, 32, 48
PROMPT_TOKENS = 16
ENTRY = "benchmarks.engine.sleeping_worker:prepare"
# The steady state: all streams decode from the first to the last of these shares of the steps.
STEADY = (0.25, 0.75)

Interval = tuple[float, float]


def run() -> Iterator[Record]:
    """One figure: the share of the stages' time in bubbles."""
    times = uvloop.run(measure())
    yield {
        "name": "pipeline.bubbles",
        "value": round(100 * bubbles(times, STEADY), 2),
        "unit": "%",
        "stages": STAGES,
        "streams": STREAMS,
        "layer_ms": round(1000 * LAYER_SECONDS, 1),
    }


def bubbles(stages: Sequence[Sequence[Interval]], steady: tuple[float, float]) -> float:
    """The share of all stages' time in which none of their layers computes; `stages` has the layers' times of each."""
    begins = sorted(began for layers in stages for began, _ in layers)
    first, last = (begins[int(share * (len(begins) - 1))] for share in steady)
    busy = sum(max(0.0, min(ended, last) - max(began, first)) for layers in stages for began, ended in layers)
    return 1 - busy / (len(stages) * (last - first))


async def measure() -> list[list[Interval]]:
    """The layers' times of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        config = core_config(folder)
        fork_server = supervised_fork_server(config, ENTRY)
        await fork_server.start(lambda reason: None)
        core = spawned_core.start(config, RecordingExecutor)
        client = await EngineClient.connect(await core.ready(60.0), timeout=60.0)
        try:
            params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
            sinks = [CountingSink() for _ in range(STREAMS)]
            for number, sink in enumerate(sinks):
                client.submit([number + 1] * PROMPT_TOKENS, params, sink)
            await asyncio.gather(*(sink.done for sink in sinks))
        finally:
            client.close()
            await core.stop(30.0)
            await fork_server.stop(10.0)
        return msgspec.json.decode((Path(folder) / TIMES).read_bytes(), type=list[list[Interval]])


class RecordingExecutor(ProcessExecutor):
    """The real executor; at its end it writes the recorded times of each stage's layers."""

    def __init__(self, config: CoreConfig, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super().__init__(config, context, ForkedWorkers(config))
        self._path = Path(config.socket_folder) / TIMES

    async def close(self) -> None:
        if self.death is None and not self._path.exists():  # Else the reason of a start that failed is not told.
            self._path.write_bytes(msgspec.json.encode(await self.collective(TIMES)))
        await super().close()


def core_config(folder: str) -> CoreConfig:
    """A tiny model in four stages, without drafts."""
    model = write_tiny_model(Path(folder) / "model", layers=LAYERS, heads=1, kv_heads=1, hidden_size=32)
    options = {
        "model": model,
        "device": "cpu",
        "dtype": "float32",
        "pipeline_parallel_size": STAGES,
        "max_num_seqs": STREAMS,
        "kv_cache_memory_bytes": "8MiB",
        "flight_recorder_dir": f"{folder}/crashes",
    }
    return spawned_core.configure(folder, *resolve_config(engine_config(options)))


if __name__ == "__main__":
    for record in run():
        print(json.dumps(record))
