"""The cost of LoRA adapters on the embedded model: unused, eight over 32 streams, and loads beside streams.

Answers have a fixed length. The first two figures stand beside the same streams without adapters, run in turn.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from safetensors.numpy import save_file

from benchmarks.record import Record
from pyllm import AsyncEngine, LoRARequest, SamplingParams
from pyllm.checkpoint.adapters.peft_folder import CONFIG, WEIGHTS
from pyllm.checkpoint.reader import read_checkpoint

STREAMS, ADAPTERS, RANK, TOKENS = 32, 8, 16, 64
ROUNDS = 3
LOADS = 1000
PROMPT = "Name the planets of the solar system, and say something about each of them: "


def run() -> Iterator[Record]:
    with tempfile.TemporaryDirectory() as folder:
        adapters = [_write(Path(folder), number) for number in range(ADAPTERS)]
        plain, unused, mixed = asyncio.run(_compare(adapters))
        yield {"name": "adapters.unused_percent", "value": round(100 * (plain / unused - 1), 2), "streams": STREAMS}
        yield {"name": "adapters.eight_share", "value": round(mixed / plain, 3), "streams": STREAMS}
        yield from asyncio.run(_load_beside_streams(adapters))


async def _compare(adapters: list[LoRARequest]) -> tuple[float, float, float]:
    """Tokens a second without adapters, with adapters that nobody uses, and with eight over all streams."""
    found: list[tuple[float, float, float]] = []
    async with AsyncEngine() as without, _engine() as engine:
        await _speed(engine, [*adapters * (STREAMS // ADAPTERS)])
        for _ in range(ROUNDS):
            plain, unused = await _speed(without, [None] * STREAMS), await _speed(engine, [None] * STREAMS)
            found.append((plain, unused, await _speed(engine, adapters * (STREAMS // ADAPTERS))))
    plain, unused, mixed = (median(column) for column in zip(*found, strict=True))
    return plain, unused, mixed


async def _load_beside_streams(adapters: list[LoRARequest]) -> list[Record]:
    """The longest gap of streams while adapters come and go, beside theirs alone, and the memory that is left.

    The KV cache is small, so that the first streams touch all of it.
    """
    async with _engine(kv_cache_memory_bytes="128MiB") as engine:
        await _speed(engine, adapters)
        for _ in range(ROUNDS):
            alone = await _gap(engine, is_over=lambda: True)
        before, loaded = _memory(), 0
        streaming = asyncio.ensure_future(_gap(engine, is_over=lambda: loaded == LOADS))
        for number in range(LOADS):
            adapter = adapters[number % ADAPTERS]
            await engine.add_lora(adapter)
            await engine.remove_lora(adapter.lora_int_id)
            loaded += 1
        gap, after = await streaming, _memory()
    return [
        {"name": "adapters.gap_ms", "value": round(1e3 * gap, 1), "alone_ms": round(1e3 * alone, 1), "streams": 4},
        {"name": "adapters.leaked_mb", "value": round((after - before) / 1e6, 1), "requests": LOADS},
    ]


def _engine(**options: str) -> AsyncEngine:
    return AsyncEngine(enable_lora=True, max_loras=ADAPTERS, max_lora_rank=RANK, **options)


async def _speed(engine: AsyncEngine, adapters: list[LoRARequest] | list[LoRARequest | None]) -> float:
    """Tokens a second of streams with these adapters."""
    params = SamplingParams(max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True, temperature=0.0)

    async def stream(number: int, adapter: LoRARequest | None) -> None:
        async for _ in engine.generate(
            f"{number}. {PROMPT}", params, f"{time.monotonic()}-{number}", lora_request=adapter
        ):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(stream(number, adapter) for number, adapter in enumerate(adapters)))
    return len(adapters) * TOKENS / (time.perf_counter() - began)


async def _gap(engine: AsyncEngine, is_over: Callable[[], bool]) -> float:
    """The longest time between two tokens of four streams without adapters, which begin again until it `is_over`."""
    params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.0)
    longest = 0.0

    async def stream(number: int) -> None:
        nonlocal longest
        last = None
        async for _ in engine.generate(f"{number}. {PROMPT}", params, f"gap-{time.monotonic()}-{number}"):
            now = time.perf_counter()
            longest = longest if last is None else max(longest, now - last)
            last = now

    while True:
        await asyncio.gather(*map(stream, range(4)))
        if is_over():
            return longest


def _write(folder: Path, number: int) -> LoRARequest:
    """Write an adapter of all linear layers, of small random numbers."""
    spec, generator = read_checkpoint().spec, np.random.default_rng(number)
    attention, feed_forward = spec.attention, spec.layers[0].feed_forward
    assert feed_forward is not None
    hidden, size = spec.hidden_size, feed_forward.size
    shapes = {
        "self_attn.q_proj": (attention.query_size, hidden),
        "self_attn.k_proj": (attention.kv_size, hidden),
        "self_attn.v_proj": (attention.kv_size, hidden),
        "self_attn.o_proj": (hidden, attention.query_size),
        "mlp.gate_proj": (size, hidden),
        "mlp.up_proj": (size, hidden),
        "mlp.down_proj": (hidden, size),
    }
    tensors = {}
    for layer in range(len(spec.layers)):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            for side, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                tensors[f"{name}.lora_{side}.weight"] = generator.normal(0, 0.01, shape).astype(np.float32)
    path = folder / str(number)
    path.mkdir()
    save_file(tensors, path / WEIGHTS)
    (path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
    return LoRARequest(f"adapter-{number}", 1 + number, str(path))


def _memory() -> int:
    """Bytes of this process and its children."""
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
