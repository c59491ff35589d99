"""The parts of a run, ordered so that a failure explains later ones."""

import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pyllm_kernels import CardError, check_card, dtype_name, select
from pyllm_kernels.cards import card_of

from benchmarks.gpu import checks, decode_packing, figures, timing, tune
from benchmarks.gpu.figures import Bench, Yardstick
from benchmarks.gpu.part_processes import RAISED, run_checks

Line = dict[str, Any]
Part = tuple[str, Callable[[], Iterable[object]]]


class Setting:
    """The device, its dtypes, and the folder of models and traces. `small`: the sizes of a test on a CPU.

    Raises:
        CardError: the card is too old for every dtype.
    """

    def __init__(self, device: str, folder: Path, *, small: bool = False) -> None:
        self.device, self.folder, self.small = torch.device(device), folder, small
        self.on_card = self.device.type == "cuda"
        self.dtypes, self.float8 = [torch.float32], False
        if self.on_card:
            self.device = torch.device("cuda", 0)
            card = torch.cuda.get_device_name(self.device), torch.cuda.get_device_capability(self.device)
            self.dtypes, self.float8 = precisions(*card)
            if not self.dtypes:
                raise CardError(refusal(*card, torch.float16))

    @property
    def dtype(self) -> str:
        """The first of its dtypes: bfloat16 if the card supports it."""
        return str(self.dtypes[0]).removeprefix("torch.")

    def of(self, dtype: torch.dtype) -> checks.Setting:
        """The setting of checks in a dtype."""
        triton, reference = (select(backend, self.device) for backend in ("triton", "reference"))
        return checks.Setting(triton, reference, self.device, dtype, self.small)

    def model(self) -> str:
        """A folder with a random model, which all parts of a run share."""
        from benchmarks.gpu.random_model import write_random_model

        folder = self.folder / ("small" if self.small else "model")
        if not (folder / "tokenizer_config.json").exists():  # which is written last
            write_random_model(folder, small=self.small)
        return str(folder)


def machine(setting: Setting) -> Iterator[Line]:
    """The machine, and the installed versions."""
    card = torch.cuda.get_device_properties(setting.device) if setting.on_card else None
    yield {
        "name": "gpu.machine",
        "card": card and card.name,
        "capability": card and [card.major, card.minor],
        "memory_gib": card and round(card.total_memory / 2**30, 1),
        "multiprocessors": card and card.multi_processor_count,
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{package: _version(package) for package in ("torch", "triton", "transformers", "pyllm", "pyllm-kernels")},
    }


def kernels(setting: Setting) -> Iterator[Line]:
    """Every kernel beside its reference; a kernel that breaks the device does not affect the others."""
    names = [f"{dtype}.{name}" for dtype in setting.dtypes for name in checks.checks(setting.of(dtype), setting.float8)]
    own = (*own_command(setting.device.type, setting.folder), "--checks")
    yield from run_checks(names, lambda left: [*own, *left])


def check(setting: Setting, names: Sequence[str]) -> int:
    """Print a line for each of these checks, up to one that raises; return the exit code."""
    for named in names:
        dtype, _, name = named.removeprefix("torch.").partition(".")
        where = setting.of(getattr(torch, dtype))
        (result,) = checks.judge(where, {name: checks.checks(where, setting.float8)[name]})
        emit({"name": f"gpu.check.{name}", "dtype": dtype, "ok": result.ok, "error": result.error})
        if isinstance(result.error, str):
            return RAISED
    return 0


def steps(setting: Setting) -> Iterator[Line]:
    """A worker's steps, none of which may make the host wait."""
    from benchmarks.gpu import worker_steps
    from benchmarks.gpu.swaps import same_bytes

    runner = worker_steps.loaded_runner(setting.model(), setting.device, setting.dtype)
    yield from worker_steps.steps_without_waiting(runner, setting.on_card)
    for result in checks.judge(setting.of(torch.float32), {"swaps": (same_bytes, checks.BITWISE)}):
        yield {"name": "gpu.check.swaps", "ok": result.ok, "error": result.error}


def graphs(setting: Setting) -> Iterator[Line]:
    """Tokens with graphs and without."""
    from benchmarks.gpu.graphs import same_tokens

    where = setting.of(torch.float32)
    for result in checks.judge(where, {"graphs": (partial(same_tokens, model=setting.model()), checks.BITWISE)}):
        yield {"name": "gpu.check.graphs", "ok": result.ok, "error": result.error}


def tokens(setting: Setting, executor: str) -> Iterator[Line]:
    """Greedy answers beside transformers, in the model's dtype with a KV cache of automatic size."""
    from benchmarks.gpu.served import tokens_beside_transformers

    where = setting.model(), setting.device.type
    if setting.dtype != "float32":
        yield from tokens_beside_transformers(*where, "float32", executor, kv_cache_bytes=256 << 20)
    yield from tokens_beside_transformers(*where, setting.dtype, executor)


def kill(setting: Setting) -> Iterator[Line]:
    """A server whose worker is killed."""
    from benchmarks.gpu.served import kill_and_recover

    yield from kill_and_recover(setting.model(), setting.device.type, setting.dtype)


def load(setting: Setting) -> Iterator[Line]:
    """A server under load."""
    from benchmarks.gpu import served

    streams = served.STREAMS[:2] if setting.small else served.STREAMS
    yield from served.load(setting.model(), setting.device.type, setting.dtype, streams)


def traces(setting: Setting) -> Iterator[Line]:
    """Chrome traces of two steps."""
    from benchmarks.gpu import worker_steps

    runner = worker_steps.loaded_runner(setting.model(), setting.device, setting.dtype)
    yield from worker_steps.traces(runner, setting.folder, setting.on_card)


def measured(setting: Setting) -> Iterator[Line]:
    """The yardstick and every figure."""
    bench = measured_bench(setting.device, setting.dtypes[0])
    yield {"name": "gpu.figures", "ok": emit_parts(figure_parts(bench, setting.float8))}


def all_reduces(setting: Setting) -> Iterator[Line]:
    """Sums between cards, if there are several."""
    from benchmarks.gpu import all_reduce

    yield from all_reduce.all_reduces(torch.cuda.device_count() if setting.on_card else 0)


def tuned(setting: Setting) -> Iterator[Line]:
    """Other tiles."""
    yield from tune.tune(measured_bench(setting.device, setting.dtypes[0]))


# In this order: kernels alone, then steps in one process, then several processes, then speed.
PARTS: dict[str, Callable[[Setting], Iterator[Any]]] = {
    "machine": machine,
    "kernels": kernels,
    "steps": steps,
    "graphs": graphs,
    "tokens-uni": partial(tokens, executor="uni"),
    "tokens-mp": partial(tokens, executor="mp"),
    "kill": kill,
    "load": load,
    "traces": traces,
    "figures": measured,
    "all-reduce": all_reduces,
    "tune": tuned,
}


def own_command(device: str, folder: Path) -> list[str]:
    """The command of a process of this program, without its task."""
    return [sys.executable, "-m", "benchmarks.gpu", "--inside", "--device", device, "--folder", str(folder)]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def precisions(name: str, capability: tuple[int, int]) -> tuple[list[torch.dtype], bool]:
    """The dtypes that the card supports, the model's first, and whether it supports fp8."""
    dtypes = [
        dtype
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        if not refusal(name, capability, dtype_name(dtype))
    ]
    return dtypes, not refusal(name, capability, "float8_e4m3fn")


def refusal(name: str, capability: tuple[int, int], dtype: torch.dtype) -> str:
    """The reason why the card does not support a dtype; empty if it does."""
    try:
        check_card(name, capability, torch.float16 if dtype is torch.float8_e4m3fn else dtype, dtype)
    except CardError as error:
        return str(error)
    return ""


def measured_bench(device: torch.device, dtype: torch.dtype) -> Bench:
    """Measure and print the yardstick; return it with the other inputs of figures."""
    timer = timing.CudaTimer(device)
    copied = timing.copy_size(torch.cuda.mem_get_info(device)[0])
    bandwidth = timing.copy_bandwidth(timer, device, copied)
    emit({"name": "gpu.copy_bandwidth", "value": round(bandwidth / 1e9, 1), "unit": "GB/s", "bytes": copied})
    matrix_rate = timing.matrix_rate(timer, device, dtype)
    emit({"name": "gpu.matrix_rate", "value": round(matrix_rate / 1e12, 1), "unit": "TFLOP/s"})
    return Bench(select("triton", device), device, dtype, timer, Yardstick(bandwidth, matrix_rate))


def figure_parts(bench: Bench, float8: bool) -> Iterator[Part]:
    """Every figure by its name, in the order of the table; a failure does not affect the others."""
    for case, decode in figures.DECODES.items():
        yield f"decode_attention {case}", partial(figures.decode_attention, bench, {case: decode})
    for case, decode in figures.DECODES.items() if float8 else ():
        yield f"decode_attention_fp8 {case}", partial(figures.decode_attention_float8, bench, {case: decode})
    places = decode_packing.Places.of(card_of(bench.device), *figures.LLAMA[1:])
    yield "decode_packing", partial(decode_packing.figures, places)
    for case, prefill in figures.PREFILLS.items():
        yield f"prefill_attention {case}", partial(figures.prefill_attention, bench, {case: prefill})
    for length in sorted({length for length, *_ in figures.PREFILLS.values()}):
        yield f"torch_attention {length}", partial(figures.torch_attention, bench, length)
    yield "small_ops", partial(figures.small_ops, bench)
    yield "experts", partial(figures.expert_figures, bench)
    yield "sampling", partial(figures.sampling, bench)
    yield "logits_ops", partial(figures.logits_ops, bench)
    from benchmarks.gpu import llama

    yield "llama_8b_step", partial(llama.steps, bench)


def emit_parts(named: Iterable[Part]) -> bool:
    """Print the results of each part, or its exception; return whether none raised."""
    ok = True
    for name, part in named:
        try:
            for figure in part():
                emit(figure)
        except Exception as error:  # noqa: BLE001  # The other figures are taken all the same.
            ok = False
            emit({"name": f"gpu.{name}", "error": f"{type(error).__name__}: {error}"[:300]})
    return ok


def emit(record: object) -> None:
    print(json.dumps(record), flush=True)
