"""Sparse attention at decode beside dense: how much of the attention it reads, perplexity, and time of a step.

A runner without a scheduler, over the documents of this repository as a text: after a long prompt, the tokens that
follow are taken as an output. `python -m benchmarks.engine.sparse_attention --model FILE.gguf --context 32000` measures
another model, with `--only-speed` over random keys and values. Knows no server.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from pyllm_kernels import AttentionLayer, AttentionMetadata, BlockBudget
from pyllm_kernels.tensors import Tensor, softmax, widened

from benchmarks.record import Record
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import WorkerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch.resolve import resolve_config
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import configure_kernels
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.sparse_attention.top_k_selector import TopKSelector
from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.step_rows import StepRows
from tests.plans import Planner, Row

DOCUMENTS = Path(__file__).parents[2] / "docs"
KINDS = {"quest": "bounds", "mean": "mean"}
TOP_K = (8, 16, 32, 64, 128)
SINK_BLOCKS, RECENT_BLOCKS, DENSE_LAYERS = 1, 4, 2
CONTEXT = 8_000
CHUNK = 192  # tokens of a step
SCORED_TOKENS = 2 * CHUNK  # of the perplexity
OBSERVED_TOKENS = 16  # of the recall
ROUNDS, STEPS_A_ROUND = 4, 6

Choice = tuple[str, int]  # the kind of selector, and its top_k


class AttentionMass:
    """A `KVSelector` that keeps all rows dense, and records the share of attention that other selectors would read.

    `shares` has, for each of `selectors`, a number for each layer, row and head: the weights of the positions in the
    chosen blocks.
    """

    in_graphs = False

    def __init__(self, selectors: Mapping[Choice, TopKSelector], kv_cache: KVCache) -> None:
        self.shares: dict[Choice, list[float]] = {choice: [] for choice in selectors}
        self._selectors = selectors
        self._layers = kv_cache.layers

    def blocks_written(self, blocks: Ints) -> None:
        for selector in self._selectors.values():
            selector.blocks_written(blocks)

    def execute_begin(self, rows: StepRows) -> None:
        self._rows = rows
        for selector in self._selectors.values():
            selector.execute_begin(rows)

    def attention_begin(
        self, layer: int, query: Tensor, metadata: AttentionMetadata, attention: AttentionLayer
    ) -> AttentionMetadata:
        of_choices = {
            choice: selector.attention_begin(layer, query, metadata, attention)
            for choice, selector in self._selectors.items()
        }
        for row in self._rows.is_sparse.nonzero()[0].tolist():
            if any(chosen is not metadata for chosen in of_choices.values()):
                self._note(layer, query, metadata, attention, row=row, of_choices=of_choices)
        return metadata

    def attention_finished(self, layer: int, output: Tensor) -> None:
        """Do nothing."""

    def execute_finished(self) -> None:
        """Do nothing."""

    def _note(
        self,
        layer: int,
        query: Tensor,
        metadata: AttentionMetadata,
        attention: AttentionLayer,
        *,
        row: int,
        of_choices: Mapping[Choice, AttentionMetadata],
    ) -> None:
        keys = self._layers[layer].keys
        length, block_size, kv_heads = int(self._rows.sequence_lengths[row]), keys.shape[1], keys.shape[2]
        table = metadata.block_tables[int(metadata.slots[row]), : -(-length // block_size)]
        seen = widened(keys[table].reshape(-1, *keys.shape[2:])[:length])  # [positions, kv_heads, head_dim]
        of_heads = widened(query[int(self._rows.query_starts[row])]).reshape(kv_heads, -1, query.shape[2])
        weights = softmax(np.einsum("kgd,pkd->kgp", of_heads, seen) * np.float32(attention.scale))
        padded = np.pad(weights.reshape(-1, length), ((0, 0), (0, len(table) * block_size - length)))
        of_blocks = padded.reshape(len(padded), -1, block_size).sum(2)  # [heads, blocks]
        for choice, chosen in of_choices.items():
            num_blocks = -(-int(chosen.sequence_lengths[row]) // block_size)
            kept = chosen.block_tables[int(chosen.slots[row]), :num_blocks]
            self.shares[choice] += of_blocks[:, np.isin(table, kept)].sum(1).tolist()


class Bench:
    """A runner with a prompt in its cache, whose next tokens are computed repeatedly.

    With `is_random` the prompt is not computed, and the cache has random numbers: the speed of the next tokens depends
    on the amount of data that they read, and not on its values.
    """

    def __init__(self, model: str, context: int, *, is_random: bool = False) -> None:
        options = {"model": model, "device": "cpu", "max_num_seqs": 1, "max_num_batched_tokens": CHUNK}
        # With one thread all work is this thread's, so that its clock excludes other processes.
        engine, checkpoint = resolve_config(engine_config(options | {"num_threads": 1}))
        configure_kernels(engine)
        assert engine.model.max_model_len is not None, "resolved above"
        self.model, self.context = checkpoint.name, min(context, engine.model.max_model_len - SCORED_TOKENS)
        self.runner = runner = ModelRunner(WorkerConfig(engine, checkpoint, 0, "", ""), RankGroup())
        runner.load()
        num_groups, block_size = len(runner._memory.groups), engine.cache.block_size
        num_blocks = num_groups * (-(-(self.context + SCORED_TOKENS) // block_size) + 1)
        runner.allocate(num_blocks)
        self._planner = Planner(num_blocks, block_size, num_groups=num_groups, max_num_seqs=1)
        text = "\n".join(path.read_text() for path in sorted(DOCUMENTS.glob("*.md")))
        self._tokens = Tokenizer(checkpoint.tokenizer).encode(text)[: self.context + SCORED_TOKENS + 1]
        assert len(self._tokens) == self.context + SCORED_TOKENS + 1, "the documents are too short"
        self._cache = runner._memory.cache
        self._dense = runner._forward
        self._planner.start(0, prompt_length=self.context)
        if is_random:
            self._fill()
        else:
            self._run(self._tokens[: self.context])

    def selector(self, choice: Choice) -> TopKSelector:
        kind, top_k = choice
        layers = [
            layer
            for layer, of_spec in enumerate(self.runner._spec.layers)
            if layer >= DENSE_LAYERS and of_spec.attention.window is None
        ]
        budget = BlockBudget(SINK_BLOCKS, top_k, RECENT_BLOCKS)
        kernels, group = self.runner._kernels, RankGroup()
        return TopKSelector(kernels, self._cache, layers, KINDS[kind], budget, max_rows=CHUNK + 1, group=group)

    def use(self, selector: KVSelector | None) -> None:
        """Use a selector from now on; None: dense attention."""
        runner = self.runner
        runner._selector, runner._forward = selector, self._dense
        if selector is not None:
            runner._forward = runner._forward_pass(self._cache, selector)
            if selector.in_graphs:
                runner._forward.capture_step()

    def perplexity(self) -> float:
        """The perplexity of the tokens after the prompt, each of which attends as at decode."""
        self._planner.lengths[0] = self.context
        hidden = self._run(self._tokens[self.context : -1])
        targets = np.array(self._tokens[self.context + 1 :])
        total = 0.0
        for start in range(0, len(targets), 64):
            logits = self.runner.model.logits(hidden[start : start + 64])
            assert logits is not None, "there is one rank"
            wanted, wide = targets[start : start + 64, None], logits.astype(np.float64)
            wide -= wide.max(-1, keepdims=True)
            log_sums = np.log(np.exp(wide).sum(-1))
            total -= float((np.take_along_axis(wide, wanted, 1)[:, 0] - log_sums).sum())
        return math.exp(total / len(targets))

    def observe(self, mass: AttentionMass) -> None:
        """Compute the last few tokens with it; those before are in the cache."""
        self.use(mass)
        self._planner.lengths[0] = self.context + SCORED_TOKENS - OBSERVED_TOKENS
        self._run(self._tokens[-OBSERVED_TOKENS - 1 : -1])

    def times(self, num_steps: int) -> list[float]:
        """Processor seconds of steps that decode a token each, after one that computes summaries."""
        self._planner.lengths[0] = self.context
        seconds = []
        for _ in range(num_steps + 1):
            step, frame = self._planner.step(Row(0, [-1]))
            started = time.thread_time()
            self.runner.run(step, frame)
            seconds.append(time.thread_time() - started)
        return seconds[1:]

    def _fill(self) -> None:
        """Fill all blocks with random numbers, and set the prompt's tables."""
        # Unwritten zeros would share one page, which stays in the CPU's caches.
        memory = self._cache.memory
        memory[...] = np.random.default_rng(0).standard_normal(memory.shape, np.float32)
        for start in range(0, self.context, CHUNK):
            step, frame = self._planner.step(Row(0, self._tokens[start : min(start + CHUNK, self.context)]))
            self.runner._slots.apply(self.runner._plans.load(step.counts, frame))

    def _run(self, tokens: list[int]) -> Tensor:
        """Hidden states of the next tokens, computed in steps of `CHUNK`."""
        parts, forward = [], self.runner.forward
        self.runner.forward = lambda batch: parts.append(forward(batch).copy()) or parts[-1]  # type: ignore
        try:
            for start in range(0, len(tokens), CHUNK):
                self.runner.run(*self._planner.step(Row(0, tokens[start : start + CHUNK])))
        finally:
            self.runner.forward = forward  # type: ignore[method-assign]
        return np.concatenate(parts)


def run() -> Iterator[Record]:
    """The figures of the embedded model."""
    yield from figures("", CONTEXT)


def figures(model: str, context: int, *, only_speed: bool = False) -> Iterator[Record]:
    bench = Bench(model, context, is_random=only_speed)
    if not only_speed:
        yield from quality(bench)
    yield from speed(bench)


def quality(bench: Bench) -> Iterator[Record]:
    """The share of attention that is read, and its effect on perplexity."""
    case: Record = {"model": bench.model, "context": bench.context}
    choices = [(kind, top_k) for kind in KINDS for top_k in TOP_K]
    mass = AttentionMass({choice: bench.selector(choice) for choice in choices}, bench._cache)
    dense = bench.perplexity()
    bench.observe(mass)
    for (kind, top_k), shares in mass.shares.items():
        name, worst = "sparse_attention.recall", statistics.quantiles(shares, n=20)[0]
        of_choice: Record = {"name": name, "kind": kind, "top_k": top_k, "value": round(statistics.mean(shares), 4)}
        yield of_choice | {"worst": round(worst, 4), "unit": ""} | case
    for kind, top_k in choices:
        bench.use(bench.selector((kind, top_k)))
        value = bench.perplexity()
        of_choice = {"name": "sparse_attention.perplexity", "kind": kind, "top_k": top_k, "value": round(value, 4)}
        yield of_choice | {"dense": round(dense, 4), "unit": ""} | case


def speed(bench: Bench) -> Iterator[Record]:
    """Tokens of one stream per processor second."""
    case: Record = {"model": bench.model, "context": bench.context}
    choices = [(kind, top_k) for kind in KINDS for top_k in TOP_K]
    # In turns, so that other load on the machine affects all of them.
    chosen: dict[Choice, KVSelector | None] = {("dense", 0): None}
    chosen |= {choice: bench.selector(choice) for choice in choices}
    seconds: dict[Choice, list[float]] = {choice: [] for choice in chosen}
    for _ in range(ROUNDS):
        for choice, selector in chosen.items():
            bench.use(selector)
            seconds[choice] += bench.times(STEPS_A_ROUND)
    speeds = {choice: round(1 / statistics.median(times), 2) for choice, times in seconds.items()}
    for (kind, top_k), value in speeds.items():
        of_choice: Record = {"name": "sparse_attention.tokens_per_s", "kind": kind, "top_k": top_k, "value": value}
        yield of_choice | {"dense": speeds["dense", 0], "unit": "tokens/s"} | case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="", help="the embedded one unless given")
    parser.add_argument(
        "--context", type=int, default=CONTEXT, help="tokens of the prompt, or as many as the model can have"
    )
    parser.add_argument(
        "--only-speed", action="store_true", help="over random keys and values: the prompt is not computed"
    )
    arguments = parser.parse_args()
    for record in figures(arguments.model, arguments.context, only_speed=arguments.only_speed):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
