"""An API process over a paced core, each in its own process, to measure the path around the model."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import psutil

from benchmarks.frontend import paced_core
from pyllm.config.process_config import ApiConfig, CoreConfig, SharedConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.supervision.child_process import ChildProcess, spawn
from pyllm.wire.listeners import bind_listener

HOST = "127.0.0.1"


class ApiProcess(NamedTuple):
    """A running API process: its port, and its CPU time and memory."""

    process: ChildProcess
    port: int

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Its proportional set size (PSS) in bytes."""
        memory: int = psutil.Process(self.process.pid).memory_full_info().pss
        return memory


@asynccontextmanager
async def core_process(
    rows: int, interval: float, max_model_len: int = paced_core.MAX_MODEL_LEN
) -> AsyncIterator[CoreConfig]:
    """A core for `rows` sequences of up to `max_model_len` tokens, with a step every `interval` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        config = paced_core.config(folder, rows, max_model_len)
        core = paced_core.start(config, interval)
        try:
            await core.ready(60.0)
            yield config
        finally:
            await core.stop(10.0)


@asynccontextmanager
async def api_process(core: CoreConfig) -> AsyncIterator[ApiProcess]:
    """An API process of this core, on a free port."""
    with bind_listener(HOST, 0) as listener:
        config = ApiConfig(
            server=ServerConfig(),
            shared=SharedConfig(core_addresses=(core.bind,)),
            checkpoint=core.checkpoint,
            served_model_name=core.engine.model.served_model_name,
        )
        process = spawn("API process", "api", listener.fileno())
        process.configure(config)
        process.watch()
        await process.ready(60.0)
        try:
            yield ApiProcess(process, listener.getsockname()[1])
        finally:
            await process.stop(10.0)
