"""Checks of served models: tokens beside transformers, in one process and several, the loss of a worker, and a load.

Needs pyllm itself and transformers.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.in_process import answers_in_process
from benchmarks.servers.load import measure, mixed_requests
from pyllm import LLM, SamplingParams

Line = dict[str, Any]
Tokens = list[int]

PROMPTS: list[Tokens] = [
    [(7 * place + seed) % 250 + 3 for place in range(length)] for seed, length in enumerate((5, 40, 200))
]
ANSWER = 32
# Long enough that a worker dies well before the last token, however fast the card is.
KILLED_ANSWER, KILL_AFTER = 400, 16
# The distance of a token from transformers' best logit that rounding may cause, as a share of the row's largest.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.03, "float16": 0.01}
STREAMS = (1, 8, 64, 256)
_READY = re.compile(r"pyllm is ready on (http://\S+)")
_WORKER = b"pyllm::worker"


def tokens_beside_transformers(
    model: str, device: str, dtype: str, executor: str, kv_cache_bytes: int | None = None
) -> Iterator[Line]:
    """Greedy answers by an engine in this process ("uni"), or in several ("mp"), beside transformers.

    Without `kv_cache_bytes` the engine chooses the size of the KV cache.
    """
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "max_model_len": 512}
    options["kv_cache_memory_bytes"] = kv_cache_bytes
    if executor == "uni":
        answers = answers_in_process(model, PROMPTS, [params] * len(PROMPTS), **options)
    else:
        with LLM(model, distributed_executor_backend=executor, **options) as llm:
            answers = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]
    line = {"name": "gpu.tokens", "executor": executor, "dtype": dtype}
    yield line | beside_transformers(model, device, dtype, answers)


def beside_transformers(model: str, device: str, dtype: str, answers: Sequence[Tokens]) -> Line:
    """The distance of each token's logit from transformers' best, after the same tokens."""
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).to(device).eval()
    worst, equal, total = 0.0, 0, 0
    with torch.inference_mode():
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            logits = theirs(torch.tensor([[*prompt, *answer]], device=device)).logits[0].float()
            rows = logits[len(prompt) - 1 : -1]
            best = rows.max(dim=-1).values
            chosen = rows.gather(1, torch.tensor(answer, device=device).unsqueeze(1)).squeeze(1)
            below = (best - chosen) / rows.abs().amax(dim=-1)
            worst = max(worst, float(below.max()) if len(below) else 0.0)
            equal += int((rows.argmax(dim=-1).cpu() == torch.tensor(answer)).sum())
            total += len(answer)
    whole = all(len(answer) == ANSWER for answer in answers)
    return {"ok": whole and worst <= TOLERANCES[dtype], "equal": equal, "of": total, "below_best": round(worst, 5)}


def kill_and_recover(model: str, device: str, dtype: str) -> Iterator[Line]:
    """A check that a stream whose worker is killed gets the same tokens as without."""
    with _server(model, device, dtype) as (address, process):
        undisturbed, _ = _stream(address)
        worker = worker_below(process.pid)  # Find it first: the search takes as long as many tokens.
        recovered, after = _stream(address, worker)
    same = undisturbed == recovered
    ok = same and worker is not None and after > 0
    yield {"name": "gpu.kill", "ok": ok, "killed": worker is not None, "same": same, "events_after": after}


def load(model: str, device: str, dtype: str, streams: Sequence[int] = STREAMS) -> Iterator[Line]:
    """A load of `streams` at a time: 16 to 64 words in (a byte is a token), as many tokens out."""
    with _server(model, device, dtype) as (address, _):
        for number in streams:
            requests = mixed_requests(max(8, 2 * number), 16, 64, seed=number)
            figures = asyncio.run(measure(address, "random", requests, number))
            yield {
                "name": "gpu.load",
                "streams": number,
                "value": figures["output_tokens_per_s"],
                "unit": "tokens/s",
                **{name: figures[name] for name in ("ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")},
            }


@contextmanager
def _server(model: str, device: str, dtype: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    options = ("--device", device, "--dtype", dtype, "--max-model-len", "512", "--served-model-name", "random")
    command = [sys.executable, "-m", "pyllm", "serve", "--model", model, "--port", "0", "--no-warm-spares", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if (ready := _READY.match(line)) is None:
            raise RuntimeError(f"the server is not ready, and its log says why: {line!r}")
        yield ready.group(1), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _stream(address: str, worker: int | None = None) -> tuple[str, int]:
    """The text of a streamed answer whose worker is killed meanwhile, and the number of events after that."""
    body = {"model": "random", "prompt": PROMPTS[1], "max_tokens": KILLED_ANSWER, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body | {"stream": True}).encode(), headers)
    text, events = "", 0
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
            events += 1
            if events == KILL_AFTER and worker is not None:
                os.kill(worker, signal.SIGKILL)
    return text, events - KILL_AFTER


def worker_below(server: int) -> int | None:
    """The worker among the processes below the server, without psutil, which a card's machine may not have."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # The process has ended meanwhile.
                continue
    below = {server}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in below:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_WORKER):
                return pid
        except OSError:
            continue
    return None
