"""`python -m benchmarks.gpu [--tune]`: is this card served rightly, and how fast? One JSON object a line.

First every kernel against torch, then the figures. Exits with 1 where a check failed or a figure could not be taken,
and with 2 where there is no CUDA card. The kernels' part needs torch, Triton and `pyllm_kernels`; CUDA graphs and the
steps of a model need `pyllm`, too.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

import torch
from pyllm_kernels import CardError, check_card, select
from pyllm_kernels.cards import card_of

from benchmarks.gpu import checks, decode_packing, figures, timing, tune
from benchmarks.gpu.figures import Bench, Yardstick

Part = tuple[str, Callable[[], Iterable[object]]]


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
    for result in chain(checks.run(device, dtypes, float8=float8), model_checks(device)):
        ok &= result.ok
        emit({"name": f"gpu.check.{result.name}", "dtype": result.dtype, "ok": result.ok, "error": result.error})
    try:
        bench = measured_bench(device, dtypes[0])
    except Exception as error:  # noqa: BLE001  # Without a yardstick there is no figure.
        emit({"name": "gpu.yardstick", "error": f"{type(error).__name__}: {error}"[:300]})
        return 1
    ok &= emit_parts(parts(bench, float8))
    if options.tune:
        ok &= emit_parts([("tune", partial(tune.tune, bench))])
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


def model_checks(device: torch.device) -> Iterator[checks.Result]:
    """What needs a model."""
    try:
        from benchmarks.gpu import graphs
    except ImportError as error:
        print(f"pyllm is not installed, so its CUDA graphs were not checked: {error}", file=sys.stderr)
        return
    setting = checks.Setting(select("triton", device), select("reference", device), device, torch.float32, small=False)
    yield from checks.judge(setting, {"graphs": (graphs.same_tokens, checks.BITWISE)})


def measured_bench(device: torch.device, dtype: torch.dtype) -> Bench:
    """The yardstick, which is printed, and all else that figures need."""
    timer = timing.CudaTimer(device)
    copied = timing.copy_size(torch.cuda.mem_get_info(device)[0])
    bandwidth = timing.copy_bandwidth(timer, device, copied)
    emit({"name": "gpu.copy_bandwidth", "value": round(bandwidth / 1e9, 1), "unit": "GB/s", "bytes": copied})
    matrix_rate = timing.matrix_rate(timer, device, dtype)
    emit({"name": "gpu.matrix_rate", "value": round(matrix_rate / 1e12, 1), "unit": "TFLOP/s"})
    return Bench(select("triton", device), device, dtype, timer, Yardstick(bandwidth, matrix_rate))


def parts(bench: Bench, float8: bool) -> Iterator[Part]:
    """Every figure by its name, in the order of the table; what fails in one leaves the others."""
    for case, decode in figures.DECODES.items():
        yield f"decode_attention {case}", partial(figures.decode_attention, bench, {case: decode})
    for case, decode in figures.DECODES.items() if float8 else ():
        yield f"decode_attention_fp8 {case}", partial(figures.decode_attention_float8, bench, {case: decode})
    _, kv_heads, head_dim = figures.LLAMA
    yield (
        "decode_packing",
        lambda: decode_packing.figures(decode_packing.Places.of(card_of(bench.device), kv_heads, head_dim)),
    )
    for case, prefill in figures.PREFILLS.items():
        yield f"prefill_attention {case}", partial(figures.prefill_attention, bench, {case: prefill})
    for length in sorted({length for length, *_ in figures.PREFILLS.values()}):
        yield f"torch_attention {length}", partial(figures.torch_attention, bench, length)
    yield "small_ops", partial(figures.small_ops, bench)
    yield "experts", partial(figures.experts, bench)
    yield "sampling", partial(figures.sampling, bench)
    yield "logits_ops", partial(figures.logits_ops, bench)
    try:
        from benchmarks.gpu import llama
    except ImportError as error:
        print(f"pyllm is not installed, so no step of a model was measured: {error}", file=sys.stderr)
        return
    yield "llama_8b_step", partial(llama.steps, bench)


def emit_parts(named: Iterable[Part]) -> bool:
    """Print what each part gives, and in its place what it raises; whether none raised anything."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
