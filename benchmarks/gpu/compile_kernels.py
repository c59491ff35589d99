"""`python -m benchmarks.gpu.compile_kernels`: reports on every compiled kernel, without a GPU. One JSON object a line.

Each line is a version of a kernel: its registers, spills, shared memory, bytes in flight, tensor-core instructions and
waits, as Triton and ptxas compile it. Exits with 1 if a tile of two-byte floats spills registers, or if a kernel does
not fit into the card's shared memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import triton

from benchmarks.gpu.offline_driver import SHARED_MEMORY, Compiler, Report
from benchmarks.gpu.offline_launches import CASES, MODULES, WIDE_CASES, Target

# Kernels that multiply tiles. Others use the largest number of threads, and so may spill a few bytes.
PRODUCTS = {"_linear_kernel", "_w4a16_kernel", "_w8a16_kernel", "_w8a8_kernel", "_fp8_kernel", "_grouped_kernel"}
PRODUCTS |= {"_prefill_kernel", "_decode_split_kernel", "_matrices_kernel", "_state_space_chunks_kernel"}
PRODUCTS |= {"_head_products_kernel"}
PRODUCTS |= {"_lora_down_kernel", "_lora_up_kernel"}
# Turing has no bfloat16.
TARGETS = [(75, "float16"), (75, "float32"), (86, "float16")]
TARGETS += [(capability, dtype) for capability in (86, 90, 100, 120) for dtype in ("bfloat16", "float32")]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.compile_kernels", description=__doc__)
    parser.add_argument("--capability", type=int, choices=sorted(SHARED_MEMORY), help="of the card; default: all")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), help="default: those of the card")
    parser.add_argument("--only", choices=CASES, action="append", help="these kernels; may be given again")
    parser.add_argument("--quick", action="store_true", help="each choice of a kernel once, not all combinations")
    options = parser.parse_args(arguments)
    if options.capability and options.dtype:
        target = Target(options.capability, getattr(torch, options.dtype), not options.quick)
        failed = [print_report(target, case, report) for case, report in compiled(target, options.only or list(CASES))]
        return int(any(failed))
    chosen = [
        target for target in TARGETS if options.capability in (None, target[0]) and options.dtype in (None, target[1])
    ]
    rest = [word for case in options.only or () for word in ("--only", case)] + ["--quick"] * options.quick
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = list(pool.map(partial(compile_apart, rest), chosen))
    return max(codes, default=0)


def compile_apart(rest: list[str], target: tuple[int, str]) -> int:
    """Compile for a card in a separate process, as Triton keeps one driver; return its exit code."""
    capability, dtype = target
    command = [sys.executable, "-m", "benchmarks.gpu.compile_kernels", "--capability", str(capability), *rest]
    process = subprocess.run([*command, "--dtype", dtype], check=False, stdout=subprocess.PIPE, text=True)
    print(process.stdout, end="", flush=True)
    return process.returncode


def compiled(target: Target, cases: list[str]) -> Iterator[tuple[str, Report]]:
    """The report of each kernel of some cases."""
    refused = WIDE_CASES if (target.capability, target.dtype) == (75, torch.float32) else ()
    for case in [case for case in cases if case not in refused]:
        compiler = Compiler(target.capability)
        with tempfile.TemporaryDirectory() as folder, compiler.active(folder):
            CASES[case](target)
        for report in compiler.reports(MODULES):
            yield case, report
        for module in MODULES:
            for function in vars(module).values():
                if isinstance(function, triton.JITFunction):
                    function.device_caches.clear()


def print_report(target: Target, case: str, report: Report) -> bool:
    """Print a line; return whether the kernel is refused."""
    may_spill = target.dtype.itemsize == 4 or report.kernel not in PRODUCTS
    refused = not report.fits or (report.spills and not may_spill)
    dtype = str(target.dtype).removeprefix("torch.")
    line = {"capability": target.capability, "dtype": dtype, "case": case, **report._asdict(), "ok": not refused}
    print(json.dumps(line), flush=True)
    return refused


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
