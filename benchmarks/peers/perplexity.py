"""Perplexity of a model on a fixed text: as our runner computes it, and beside it llama.cpp and transformers.

`python -m benchmarks.peers.perplexity [--peers FOLDER] [--transformers] [OPTION=VALUE ...]` prints one JSON object for
each; options are the engine's, as in `dtype=float32`. Scored as `llama-perplexity` does: the text is cut into contexts
of 512 tokens, each begins with the BOS token where the model has one, and the targets are the tokens 257 to 511 of
each. Knows no server.
"""

import argparse
import json
import math
import re
import struct
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from pyllm._rust import Scheduler
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config, option_names
from pyllm.config.process_config import WorkerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch.resolve import resolve_config
from pyllm.wire.messages import Sampling, Step
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.step.batch import Batch
from pyllm.workers.worker_process import load

TEXT = Path(__file__).parents[1] / "perplexity.txt"
CONTEXT = 512
FIRST = CONTEXT // 2  # the position whose logits are the first to be scored: before it there is too little context

Tokens = list[int]
# From the tokens of one context to the logits of its positions FIRST to CONTEXT - 2, float32 [positions, vocab_size].
Logits = Callable[[Tokens], Tensor]
Score = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="where llama/bin/llama-perplexity is")
    parser.add_argument("--transformers", action="store_true", help="the same weights in float32 by transformers, too")
    parser.add_argument("--contexts", type=int, metavar="N", help="score only the first N contexts")
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE", help=f"of {', '.join(option_names())}")
    arguments = parser.parse_args()
    options = {"device": "cpu"} | dict(_option(text) for text in arguments.options)
    for score in scores(options, arguments.peers, arguments.transformers, arguments.contexts):
        print(json.dumps(score), flush=True)


def scores(
    options: dict[str, Any], peers: Path | None, with_transformers: bool, limit: int | None = None
) -> Iterator[Score]:
    """The score of pyllm; then that of llama.cpp on the same file, and of transformers in float32."""
    engine, checkpoint = resolve_config(engine_config(options))
    contexts = cut(Tokenizer(checkpoint.tokenizer), TEXT.read_text())[:limit]

    def score(name: str, given: dict[str, Any], logits: Logits) -> Score:
        begin = time.perf_counter()
        value = perplexity(contexts, logits)
        return _score(name, checkpoint, value, len(contexts), time.perf_counter() - begin) | {"options": given}

    yield score("pyllm", {**options, "dtype": engine.model.dtype}, runner_logits(engine, checkpoint))
    if peers is not None:
        yield llama_cpp(peers / "llama" / "bin" / "llama-perplexity", checkpoint, contexts)
    if with_transformers:
        yield score("transformers", {"dtype": "float32"}, transformers_logits(checkpoint))


def cut(tokenizer: Tokenizer, text: str) -> list[Tokens]:
    """The whole contexts of a text, as llama.cpp makes them: a BOS token takes the place of a context's first."""
    tokens = tokenizer.encode(text.removesuffix("\n"))
    bos = tokenizer.encode("")
    starts = range(0, len(tokens) - CONTEXT + 1, CONTEXT)
    return [bos + tokens[start + len(bos) : start + CONTEXT] for start in starts]


def perplexity(contexts: Sequence[Tokens], logits: Logits) -> float:
    """e to the mean negative log-likelihood of every scored token, its logits being float32."""
    total = 0.0
    for tokens in contexts:
        targets = torch.tensor(tokens[FIRST + 1 :])
        # Row by row in double precision, as the sum of a whole vocabulary in float32 is not the same everywhere.
        log_probabilities = torch.log_softmax(logits(tokens).double(), dim=-1)
        total -= log_probabilities.gather(1, targets[:, None]).sum().item()
    return math.exp(total / (len(contexts) * (CONTEXT - 1 - FIRST)))


def runner_logits(engine: EngineConfig, checkpoint: Checkpoint) -> Logits:
    """The logits of pyllm's runner, from real plans on its usual path."""
    runner = load(WorkerConfig(engine=engine, checkpoint=checkpoint, rank=0, address="", rendezvous=""), lambda _: None)
    block_size, max_model_len = engine.cache.block_size, engine.model.max_model_len
    assert max_model_len is not None, "resolved above"
    num_blocks = -(-CONTEXT // block_size) + 1
    runner.call("allocate", (num_blocks, 0))
    tap = HiddenTap(runner)
    scheduler = Scheduler(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=1,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=checkpoint.spec.vocab_size,
        enable_prefix_caching=False,
    )
    greedy = msgspec.msgpack.encode(Sampling(temperature=0.0))

    @torch.inference_mode()
    def logits(tokens: Tokens) -> Tensor:
        tap.hidden.clear()
        prompt = array("i", tokens).tobytes()
        scheduler.add(0, tap.num_contexts, prompt, seed=0, max_tokens=1, sampling=greedy)
        tap.num_contexts += 1
        while (plan := scheduler.schedule(0.0)) is not None:
            sampled = runner.run(Step(plan.step, tuple(plan.counts)), memoryview(plan))
            scheduler.commit(plan.step, sampled.starts, sampled.tokens)
            scheduler.take_deltas(0)
        result = runner.model.logits(np.concatenate(tap.hidden)[FIRST:-1])
        assert result is not None, "there is one rank"
        return torch.from_numpy(np.asarray(result, np.float32))

    return logits


class HiddenTap:
    """Wraps a runner's forward pass and keeps the last layer's output for every token of a context."""

    def __init__(self, runner: ModelRunner) -> None:
        self.hidden: list[Tensor] = []  # of each step, [tokens, hidden_size]
        self.num_contexts = 0
        self._forward = runner.forward
        runner.forward = self  # type: ignore[method-assign,assignment]

    def __call__(self, batch: Batch) -> Tensor:
        hidden = self._forward(batch)
        self.hidden.append(hidden.copy())
        return hidden


def transformers_logits(checkpoint: Checkpoint) -> Logits:
    """The logits of transformers in float32, on the file's weights as floats."""
    from benchmarks.peers.peer_models import transformers_model

    model = transformers_model(checkpoint, torch.float32)

    @torch.inference_mode()
    def logits(tokens: Tokens) -> Tensor:
        result: Tensor = model(torch.tensor([tokens])).logits
        return result[0, FIRST:-1].float()

    return logits


def llama_cpp(program: Path, checkpoint: Checkpoint, contexts: Sequence[Tokens]) -> Score:
    """The score of `llama-perplexity` for the same GGUF file, after a check that it reads the same tokens.

    Raises:
        RuntimeError: it reads other tokens, or prints no perplexity.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "logits"
        command = [
            str(program),
            "-m",
            checkpoint.files[0],
            "-f",
            str(TEXT),
            "-c",
            str(CONTEXT),
            "--chunks",
            str(len(contexts)),
        ]
        begin = time.perf_counter()
        result = subprocess.run(
            [*command, "--save-all-logits", str(saved)], capture_output=True, text=True, errors="replace", check=True
        )
        seconds = time.perf_counter() - begin
        theirs = saved_contexts(saved)
    if (found := re.search(r"Final estimate: PPL = ([\d.]+)", result.stdout + result.stderr)) is None:
        raise RuntimeError(f"llama-perplexity said no perplexity: {result.stderr[-500:]}")
    # Its file has the tokens of the text: it adds the BOS token only for the computation.
    if [tokens[1:] for tokens in theirs] != [tokens[1:] for tokens in contexts]:
        raise RuntimeError(f"llama.cpp reads {TEXT.name} as other tokens than we do: compare the two tokenizers")
    return _score("llama.cpp", checkpoint, float(found[1]), len(contexts), seconds)


def saved_contexts(path: Path) -> list[Tokens]:
    """The tokens at the head of a file of `llama-perplexity --save-all-logits`: int32, after their number."""
    with path.open("rb") as file:
        magic, length, _, number = struct.unpack("<8s3i", file.read(20))
        assert magic == b"_logits_", f"{path} begins with {magic!r}"
        tokens = array("i", file.read(4 * length * number)).tolist()
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]


def _score(engine: str, checkpoint: Checkpoint, value: float, contexts: int, seconds: float) -> Score:
    return {
        "name": "perplexity",
        "engine": engine,
        "model": checkpoint.name,
        "options": {},
        "value": round(value, 6),
        "tokens": contexts * (CONTEXT - 1 - FIRST),
        "seconds": round(seconds, 1),
    }


def _option(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE`; a number, true or false in JSON becomes one, everything else a text."""
    name, _, value = text.partition("=")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


if __name__ == "__main__":
    main()
