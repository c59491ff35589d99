"""`python -m benchmarks.gpu [--tune]`: is this card served rightly, and how fast? One JSON object a line.

First every kernel against its reference, then the figures. Exits with 1 where a check failed, and with 2 where there is
no CUDA card. The kernels' part needs torch, Triton and `pyllm_kernels`; the steps of a model need `pyllm`, too.
"""

import argparse
import json
import sys
from collections.abc import Iterator

import torch
from pyllm_kernels import CardError, check_card, select

from benchmarks.gpu import checks, figures, timing, tune
from benchmarks.gpu.figures import Bench, Yardstick


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--tune", action="store_true", help="time other tiles of attention, too; takes minutes")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "no CUDA card is visible to torch here, so nothing was checked or measured; "
            "run this where nvidia-smi lists one and torch is a CUDA build",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda", 0)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    dtypes, float8 = precisions(name, capability)
    if not dtypes:
        print(refusal(name, capability, torch.float16), file=sys.stderr)
        return 2
    emit({"name": "gpu.card", "value": name, "capability": list(capability), "torch": torch.__version__})
    ok = True
    for result in checks.run(device, dtypes, float8=float8):
        ok &= result.ok
        emit({"name": f"gpu.check.{result.name}", "dtype": result.dtype, "ok": result.ok, "error": result.error})
    bench = measured_bench(device, dtypes[0])
    for figure in all_figures(bench, float8):
        emit(figure)
    if options.tune:
        for ranking in tune.tune(bench):
            emit(ranking)
    return 0 if ok else 1


def precisions(name: str, capability: tuple[int, int]) -> tuple[list[torch.dtype], bool]:
    """The dtypes that the card has, the model's first, and whether it has fp8."""
    dtypes = [dtype for dtype in (torch.bfloat16, torch.float16, torch.float32) if not refusal(name, capability, dtype)]
    return dtypes, not refusal(name, capability, torch.float8_e4m3fn)


def refusal(name: str, capability: tuple[int, int], dtype: torch.dtype) -> str:
    """Why the card does not have a dtype; empty where it has."""
    try:
        check_card(name, capability, torch.float16 if dtype is torch.float8_e4m3fn else dtype, dtype)
    except CardError as error:
        return str(error)
    return ""


def measured_bench(device: torch.device, dtype: torch.dtype) -> Bench:
    """The yardstick, which is printed, and all else that figures need."""
    timer = timing.CudaTimer(device)
    yardstick = Yardstick(timing.copy_bandwidth(timer, device), timing.matrix_rate(timer, device, dtype))
    emit({"name": "gpu.copy_bandwidth", "value": round(yardstick.bandwidth / 1e9, 1), "unit": "GB/s"})
    emit({"name": "gpu.matrix_rate", "value": round(yardstick.matrix_rate / 1e12, 1), "unit": "TFLOP/s"})
    return Bench(select("triton", device), device, dtype, timer, yardstick)


def all_figures(bench: Bench, float8: bool) -> Iterator[figures.Figure]:
    """Every figure, in the order of the table."""
    yield from figures.decode_attention(bench)
    if float8:
        yield from figures.decode_attention_float8(bench)
    yield from figures.prefill_attention(bench)
    yield from figures.small_ops(bench)
    yield from figures.sampling(bench)
    yield from figures.logits_ops(bench)
    try:
        from benchmarks.gpu import llama
    except ImportError as error:
        print(f"pyllm is not installed, so no step of a model was measured: {error}", file=sys.stderr)
        return
    yield from llama.steps(bench)


def emit(record: object) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
