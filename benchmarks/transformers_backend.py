"""The same model in bfloat16 by transformers within us, by our family, and by transformers alone in its two ways.

8 streams of 128 tokens after natural prompts. `generate` gets all of them as one batch; its continuous batching gets
them as requests. Each of ours is a process of its own, and so is that of transformers.
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.load import natural_requests
from benchmarks.record import Record

STREAMS = 8
WORDS = 80
OUTPUT_TOKENS = 128
ROUNDS = 3


def run() -> Iterator[Record]:
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "benchmarks.peer_models", folder], check=True, capture_output=True)
        ours, theirs = (_in_process(by, folder) for by in (_by_ours, _by_theirs))
    yield {
        "name": "transformers_backend.output_tokens_per_s",
        "value": ours["transformers"],
        "unit": "tokens/s",
        "streams": STREAMS,
        "family": ours["native"],
        "generate": theirs["generate"],
        "continuous_batching": theirs["continuous batching"],
    }


def _in_process(measure: Callable[[str], dict[str, float]], folder: str) -> dict[str, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, folder).result()


def _prompts() -> list[str]:
    return [request.prompt for request in natural_requests(STREAMS, WORDS, OUTPUT_TOKENS, seed=STREAMS)]


def _fastest(answer: Callable[[], int]) -> float:
    """Tokens a second of the fastest of some rounds; `answer` gives how many tokens it made."""
    answer()  # memory is touched, and kernels chosen
    rates = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        rates.append(answer() / (time.perf_counter() - begin))
    return round(max(rates), 1)


def _by_ours(folder: str) -> dict[str, float]:
    from pyllm import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    found = {}
    for implementation in ("native", "transformers"):
        with LLM(
            folder, model_impl=implementation, dtype="bfloat16", enable_prefix_caching=False, num_speculative_tokens=0
        ) as llm:
            found[implementation] = _fastest(
                lambda llm=llm: sum(len(output.outputs[0].token_ids) for output in llm.generate(_prompts(), params))
            )
    return found


def _by_theirs(folder: str) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(Path(folder), dtype=torch.bfloat16).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(folder), padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # No token ends an answer: every stream gets all of its tokens.
    config = GenerationConfig(
        max_new_tokens=OUTPUT_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=tokenizer.pad_token_id
    )

    @torch.inference_mode()
    def generate() -> int:
        inputs = tokenizer(_prompts(), padding=True, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        return int(model.generate(**inputs, generation_config=config)[:, length:].numel())

    def continuous_batching() -> int:
        inputs = [tokenizer(prompt)["input_ids"] for prompt in _prompts()]
        outputs = model.generate_batch(inputs=inputs, generation_config=config)
        return sum(len(output.generated_tokens) for output in outputs.values())

    return {"generate": _fastest(generate), "continuous batching": _fastest(continuous_batching)}
