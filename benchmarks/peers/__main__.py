"""pyllm and its peers on the same workloads, one after another: `python -m benchmarks.peers FOLDER`.

Each measurement is a JSON line, printed and appended to a file, so that a broken run goes on where it was; at the end
comes a line for each row of the comparison, with what is asked of it. `docs/benchmarking.md` says what FOLDER holds.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.comparison import ROWS, Measurement, compare, rows_of_file
from benchmarks.peers.peer_server import MODEL, Server, per_second
from benchmarks.servers.load import (
    MIXED_SEED,
    conversation_requests,
    equal_requests,
    measure,
    mixed_requests,
    natural_requests,
    warm_up_requests,
)
from pyllm.bench.prompt_sets import Prompt
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.machine import cpu_features

REQUESTS = {1: 8, 8: 32, 32: 64}  # by how many run at once
SHARED_PREFIXES = (2000, 80, 341)  # tokens; the last two are those of arXiv 2309.06180, section 6.4
MIXED = (64, 16, 240)  # requests, and the bounds of the lengths of their prompts and outputs
BATCH_SIZES = (8, 32)
INSTRUCTIONS = ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8")
QUIET = 0.1  # cores that others may have during a load whose figures are to count
PROMPT_TOKENS = (128, 1000, 3500)
# Conversations of three turns, each 120 words (160 tokens) longer than the one before, eight answered at a time, with a
# KV cache on the device for a tenth of all tokens.
CONVERSATIONS, TURN_WORDS, ANSWER_TOKENS, CONVERSATIONS_AT_ONCE = 200, 120, 32, 8
CONVERSATION_CACHE = 10_240  # tokens
BLOCK_SIZE = 16
SHARED_CACHE = ("--kv-cache-memory-bytes", "4GiB")  # 32 of the longest prompts side by side, in float32, too


class Workload(NamedTuple):
    """Requests, and the number at once. The requests `before` are sent first, and not measured."""

    requests: list[Prompt]
    concurrency: int
    before: tuple[Prompt, ...] = ()


# Seeds differ, so that no workload finds another's prompts in a cache.
STREAMS = {
    f"streams-{at_once}": Workload(equal_requests(number, 128, 128, seed=at_once), at_once)
    for at_once, number in REQUESTS.items()
}
# Of 80 words, about 128 tokens, which repeat themselves less than random words do.
NATURAL = {
    f"natural-{at_once}": Workload(natural_requests(number, 80, 128, seed=at_once), at_once)
    for at_once, number in REQUESTS.items()
}
SHARED = {
    f"shared-{shared}": Workload(equal_requests(64, shared + 32, 32, shared, seed=shared), 32)
    for shared in SHARED_PREFIXES
}
# One prompt after the other of about so many tokens, and a token of each answer.
LONG = {
    f"prompt-{tokens}": Workload(natural_requests(4, tokens * 5 // 8, 1, seed=tokens), 1) for tokens in PROMPT_TOKENS
}
FIRST_TURNS, LATER_TURNS = (
    conversation_requests(CONVERSATIONS, turns, TURN_WORDS, ANSWER_TOKENS) for turns in ((1,), (2, 3))
)
CONVERSATION = {"conversations-return": Workload(LATER_TURNS, CONVERSATIONS_AT_ONCE, tuple(FIRST_TURNS))}
WORKLOADS = {
    **CONVERSATION,
    **STREAMS,
    **NATURAL,
    **SHARED,
    **LONG,
    "mixed": Workload(mixed_requests(*MIXED, MIXED_SEED), 32),
}


class Peer(NamedTuple):
    """A command and its workloads: a server, or a program that prints its own figures."""

    name: str
    workloads: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    serves: bool = True
    knows_capitals: bool = True  # which tells whether its answers make sense
    scratch: Path | None = None  # a folder that it fills, and that is removed before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="measure what begins so, as llama.cpp or pyllm/streams-1, again"
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        help="compare on this GGUF file, or several by a flag each, and on nothing else",
    )
    parser.add_argument("--results", type=Path, help="default: results.jsonl in the folder")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="more flags for pyllm serve")
    arguments = parser.parse_args()
    # By default a SIGTERM would end this process alone, and leave a server behind that takes the next one's cores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder: Path = arguments.folder.resolve()
    results: Path = arguments.results or folder / "results.jsonl"
    files = [file.resolve() for file in arguments.file]
    peers = [*ours(arguments.flags), *tiers(folder, arguments.flags), *found_in(folder), *static_batches()]
    if files:
        peers = [peer for file in files for peer in on_file(file, folder, arguments.flags)]
    for peer in peers:
        done = {line["workload"] for line in read(results) if line["peer"] == peer.name}
        chosen = [name for name in peer.workloads if f"{peer.name}/{name}".startswith(arguments.only)]
        for measurement in measured(peer, [name for name in chosen if arguments.only or name not in done], folder):
            with results.open("a") as file:
                print(json.dumps(measurement), file=file)
            print(json.dumps(measurement), flush=True)
    rows = [row for file in files for row in rows_of_file(file.stem)] if files else ROWS
    for answer in compare(read(results), rows):
        print(json.dumps(answer), flush=True)


def ours(flags: Sequence[str]) -> list[Peer]:
    """pyllm by default, in bfloat16, and with a fixed KV cache, with the prefix cache and without."""
    command = _serve(flags)
    bfloat16 = ("--dtype", "bfloat16")
    return [
        Peer("pyllm", (*STREAMS, *NATURAL), command),
        Peer("pyllm-no-guesses", tuple(NATURAL), (*command, "--num-speculative-tokens", "0")),
        Peer("pyllm-bfloat16", (*STREAMS, "mixed"), (*command, *bfloat16)),
        Peer("pyllm-prefix-cache", tuple(SHARED), (*command, *SHARED_CACHE)),
        Peer("pyllm-no-prefix-cache", tuple(SHARED), (*command, *SHARED_CACHE, "--no-enable-prefix-caching")),
    ]


def tiers(folder: Path, flags: Sequence[str]) -> Iterator[Peer]:
    """pyllm, and llama.cpp on the same file, with a small KV cache on the device, and further tiers."""
    command = _serve(flags)
    limits = (
        "--max-num-seqs",
        str(CONVERSATIONS_AT_ONCE),
        "--max-model-len",
        str(CONVERSATION_CACHE // CONVERSATIONS_AT_ONCE),
    )
    small = (*command, *limits, "--num-gpu-blocks-override", str(CONVERSATION_CACHE // BLOCK_SIZE))
    disk = folder / "kv-cache"
    yield Peer("pyllm-tier-none", tuple(CONVERSATION), small)
    yield Peer("pyllm-tier-host", tuple(CONVERSATION), (*small, "--kv-offloading-size", "8GiB"))
    yield Peer("pyllm-tier-disk", tuple(CONVERSATION), (*small, "--kv-cache-dir", str(disk)), scratch=disk)
    program, file = folder / "llama" / "bin" / "llama-server", Path(read_checkpoint("").files[0])
    if program.exists():
        for tier, size in {"none": "0", "host": "8192"}.items():
            peer = (*_llama_cpp(program, file, "on", CONVERSATIONS_AT_ONCE, CONVERSATION_CACHE), "--cache-ram", size)
            yield Peer(f"llama.cpp-tier-{tier}", tuple(CONVERSATION), peer)


def found_in(folder: Path) -> Iterator[Peer]:
    """llama.cpp on each GGUF file, with flash attention and without; vLLM, set to compute on every core."""
    program, embedded = folder / "llama" / "bin" / "llama-server", Path(read_checkpoint("").files[0])
    if program.exists():
        ggufs = {"bf16": folder / "gguf" / "bf16.gguf", "q8_0": folder / "gguf" / "q8_0.gguf", "q4_1": embedded}
        for precision, file in ggufs.items():
            for attention in ("on", "off"):
                name = f"llama.cpp-{precision}-fa-{attention}"
                if file.exists():
                    yield Peer(name, (*STREAMS, *NATURAL), _llama_cpp(program, file, attention))
                else:
                    print(f"no {file}: {name} is left out", file=sys.stderr)
    vllm, model = folder / "vllm", folder / "hf"
    if (vllm / "bin" / "vllm").exists() and model.exists():
        yield Peer("vllm-bf16", tuple(STREAMS), _vllm(vllm, model), tuple(_vllm_environment(vllm).items()))


def on_file(file: Path, folder: Path, flags: Sequence[str]) -> Iterator[Peer]:
    """pyllm without and with speculation, and llama.cpp with and without flash attention, on one GGUF file."""
    ours = _serve([str(file), *flags])
    no_guesses = (*ours, "--num-speculative-tokens", "0", "--no-enable-prefix-caching")
    yield Peer(f"pyllm-no-guesses@{file.stem}", (*NATURAL, *LONG), no_guesses, knows_capitals=False)
    yield Peer(f"pyllm@{file.stem}", tuple(NATURAL), ours, knows_capitals=False)
    program = folder / "llama" / "bin" / "llama-server"
    for attention in ("off", "on"):
        many, alone = (_llama_cpp(program, file, attention, *slots) for slots in ((32, 16_384), (1, 8192)))
        yield Peer(f"llama.cpp-fa-{attention}@{file.stem}", tuple(NATURAL), many, knows_capitals=False)
        yield Peer(f"llama.cpp-fa-{attention}-alone@{file.stem}", tuple(LONG), alone, knows_capitals=False)


def static_batches() -> Iterator[Peer]:
    """transformers, without a server, with requests in batches of one size."""
    for size in BATCH_SIZES:
        command = (sys.executable, "-m", "benchmarks.peers.static_batches", *map(str, MIXED), str(size))
        yield Peer(f"transformers-batch-{size}", ("mixed",), command, serves=False)


def measured(peer: Peer, workloads: Sequence[str], folder: Path) -> Iterator[Measurement]:
    """A measurement of each workload; the server is started once for all."""
    if not workloads:
        return
    about = {
        "peer": peer.name,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine(),
        "command": " ".join(peer.command),
    }
    if not peer.serves:
        result = subprocess.run(peer.command, stdout=subprocess.PIPE, check=True)
        for name in workloads:
            yield {**about, "workload": name, **json.loads(result.stdout)}
        return
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"{peer.name}.log"
    if peer.scratch is not None:
        shutil.rmtree(peer.scratch, ignore_errors=True)
    with Server(peer.command, dict(peer.environment), log, peer.knows_capitals) as server:
        asyncio.run(measure(server.address, MODEL, warm_up_requests(), 2))
        for name in workloads:
            workload = WORKLOADS[name]
            if workload.before:
                asyncio.run(measure(server.address, MODEL, workload.before, workload.concurrency))
            begin = server.clocks()
            figures = asyncio.run(measure(server.address, MODEL, workload.requests, workload.concurrency))
            cores = per_second(begin, server.clocks())
            if cores.others + cores.stolen > QUIET:
                taken = f"others had {cores.others} cores and the host {cores.stolen}"
                print(f"{peer.name} was disturbed on {name}: {taken}; measure it again", file=sys.stderr)
            yield {
                **about,
                "workload": name,
                **figures,
                "cores": cores._asdict(),
                "ready_s": server.ready_seconds,
                "memory_mb": server.memory(),
            }


def read(results: Path) -> list[Measurement]:
    """The lines of a results file that were measured on the same kind of machine."""
    if not results.exists():
        return []
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return [line for line in lines if line["machine"] == machine()]


def machine() -> str:
    """The processor's name, its cores, and its instruction sets for matrix products."""
    found = [flag for flag in INSTRUCTIONS if flag in cpu_features.instructions()]
    return ", ".join([cpu_features.about().get("model name", platform.machine()), f"{os.cpu_count()} cores", *found])


def _serve(arguments: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable, "-m", "pyllm", "serve", *arguments, "--port", "{port}", "--served-model-name", MODEL)


def _llama_cpp(program: Path, model: Path, attention: str, slots: int = 32, tokens: int = 16_384) -> tuple[str, ...]:
    threads = str(os.cpu_count())
    return (
        *(str(program), "-m", str(model), "-a", MODEL, "--host", "127.0.0.1", "--port", "{port}", "--offline"),
        *("-t", threads, "-np", str(slots), "-c", str(tokens), "-fa", attention),
    )


def _vllm(vllm: Path, model: Path) -> tuple[str, ...]:
    program = str(vllm / "bin" / "vllm")
    return (
        *(program, "serve", str(model), "--served-model-name", MODEL, "--dtype", "bfloat16"),
        *("--host", "127.0.0.1", "--port", "{port}"),
    )


def _vllm_environment(vllm: Path) -> dict[str, str]:
    # By default vLLM keeps a core for its scheduler, and computes on one of two cores.
    preload = [vllm / "preload" / "libtcmalloc_minimal.so.4", vllm / "lib" / "libiomp5.so"]
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CACHE_ROOT": str(vllm / "cache" / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(vllm / "cache" / "inductor"),
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
        "PATH": f"{vllm / 'bin'}:{os.environ['PATH']}",
    }


if __name__ == "__main__":
    main()
