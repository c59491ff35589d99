"""One model in bfloat16 by transformers within pyllm (in int8, too), by pyllm's family, and by transformers alone.

8 streams at once, after natural prompts: 8 answers of 128 tokens, and 16 answers of 16 to 240 tokens. `generate` gets
batches of 8, each of which runs until its longest has ended; continuous batching gets a request whenever one has ended.
pyllm runs in one process, and transformers alone in another.
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import Record
from benchmarks.servers.load import natural_requests
from pyllm.bench.prompt_sets import Prompt

STREAMS = 8
WORDS = 80
ROUNDS = 2

Rates = dict[tuple[str, str], float]  # tokens a second, by engine and workload


def run() -> Iterator[Record]:
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "benchmarks.peers.peer_models", folder], check=True, capture_output=True)
        ours, theirs = Rates(), Rates()
        for _ in range(ROUNDS):  # in turn, as a machine that others share is faster now and then
            for fastest, measure in ((ours, _by_ours), (theirs, _by_theirs)):
                for name, rate in _in_process(measure, folder).items():
                    fastest[name] = max(rate, fastest.get(name, 0.0))
    for kind in _workloads():
        yield {
            "name": "transformers_backend.output_tokens_per_s",
            "value": ours["transformers", kind],
            "unit": "tokens/s",
            "kind": kind,
            "streams": STREAMS,
            "int8": ours["transformers, int8", kind],
            "family": ours["family", kind],
            "generate": theirs["generate", kind],
            "continuous_batching": theirs["continuous batching", kind],
        }


def _workloads() -> dict[str, list[Prompt]]:
    random = Random(STREAMS)
    mixed = [Prompt(request.text, random.randint(16, 240)) for request in natural_requests(16, WORDS, 0)]
    return {"equal lengths": natural_requests(STREAMS, WORDS, 128), "mixed lengths": mixed}


def _in_process(measure: Callable[[str], Rates], folder: str) -> Rates:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, folder).result()


def _rate(answer: Callable[[list[Prompt]], int], requests: list[Prompt]) -> float:
    """Tokens a second; `answer` returns the number of tokens."""
    answer([Prompt(request.text, 8) for request in requests])  # memory is touched, and kernels chosen
    begin = time.perf_counter()
    answered = answer(requests)
    seconds = time.perf_counter() - begin
    assert answered == sum(request.output_tokens for request in requests)
    return round(answered / seconds, 1)


def _by_ours(folder: str) -> Rates:
    from pyllm import LLM, SamplingParams

    rates: Rates = {}
    options = {"dtype": "bfloat16", "max_num_seqs": STREAMS, "num_speculative_tokens": 0}
    for name, implementation, quantization in (
        ("family", "native", "none"),
        ("transformers", "transformers", "none"),
        ("transformers, int8", "transformers", "int8"),
    ):
        chosen = {"model_impl": implementation, "quantization": quantization, **options}
        with LLM(folder, enable_prefix_caching=False, **chosen) as llm:

            def answer(requests: list[Prompt], llm: LLM = llm) -> int:
                params = [
                    SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
                    for request in requests
                ]
                outputs = llm.generate([request.text for request in requests], params)
                return sum(len(output.outputs[0].token_ids) for output in outputs)

            for kind, requests in _workloads().items():
                rates[name, kind] = _rate(answer, requests)
    return rates


def _by_theirs(folder: str) -> Rates:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(Path(folder), dtype=torch.bfloat16).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(folder), padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # No token ends an answer: every stream gets all of its tokens.
    config = GenerationConfig(max_new_tokens=256, do_sample=False, eos_token_id=-1, pad_token_id=tokenizer.pad_token_id)

    @torch.inference_mode()
    def generate(requests: list[Prompt]) -> int:
        for first in range(0, len(requests), STREAMS):
            batch = requests[first : first + STREAMS]
            inputs = tokenizer([request.text for request in batch], padding=True, return_tensors="pt")
            longest = max(request.output_tokens for request in batch)
            model.generate(**inputs, generation_config=config, max_new_tokens=longest)
        return sum(request.output_tokens for request in requests)  # what follows an answer's own length is of no use

    def continuous_batching(requests: list[Prompt]) -> int:
        waiting = [(tokenizer(request.text)["input_ids"], request.output_tokens) for request in requests]
        made = running = 0
        with model.continuous_batching_context_manager(generation_config=config) as manager:
            while waiting or running:
                while waiting and running < STREAMS:
                    tokens, length = waiting.pop(0)
                    manager.add_request(tokens, max_new_tokens=length)
                    running += 1
                result = manager.get_result(timeout=60)
                if result is not None and result.is_finished():
                    made += len(result.generated_tokens)
                    running -= 1
        return made

    return {
        (name, kind): _rate(answer, requests)
        for name, answer in (("generate", generate), ("continuous batching", continuous_batching))
        for kind, requests in _workloads().items()
    }
