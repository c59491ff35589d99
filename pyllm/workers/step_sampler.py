"""Draws a step's tokens from its hidden states, op by op or by captured graphs, with log-probabilities and embeddings.

Its caller passes the functions that compute logits. Knows neither KV blocks nor the forward pass.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from pyllm_kernels.tensors import Tensor

from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import sampling_rank
from pyllm.wire.messages import Sampled
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.sampling.pooling import EmbeddingOf, Pooler
from pyllm.workers.sampling.prompt_logprobs import score_prompts
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.sampling.token_sampler import Draw, TokenSampler
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.slots import Slots

if TYPE_CHECKING:
    from pyllm.workers.cuda_graphs import Capture, CaptureBudget
    from pyllm.workers.grammar.token_masks import Grammars
    from pyllm.workers.sampling_graphs import DeviceSampler, SamplingGraphs


class StepSampler:
    """Sampling on the ranks of the last stage: one draws the tokens and sends them to the others; all store them.

    Call for each step `follow`, `draw` and `finish`, in the order of the steps.
    """

    def __init__(self, config: WorkerConfig, placement: WeightPlacement, slots: Slots) -> None:
        self.draws = config.rank == sampling_rank(config.engine.parallel)
        """Whether this is the rank that draws."""
        self._checkpoint = config.checkpoint
        self._max_num_seqs = config.engine.scheduler.max_num_seqs
        self._placement = placement
        self._slots = slots
        self._grammars: Future[Grammars] | None = None
        self._sampling_slots = SamplingSlots(
            self._max_num_seqs, config.checkpoint.spec.vocab_size, self._wait_for_grammars if self.draws else None
        )
        self._token_sampler = TokenSampler(
            self._sampling_slots,
            placement.device,
            processed_logprobs=config.engine.model.logprobs_mode == "processed_logprobs",
        )
        self._pooler = Pooler(placement.device)
        self._graphs: SamplingGraphs | None = None

    def load_grammars(self) -> None:
        """Load llguidance's tokenizer on a thread, unless that has begun: it holds the interpreter for 0.2 s."""
        if self.draws and self._grammars is None:
            self._grammars = Future()
            threading.Thread(target=self._load, args=(self._grammars,), name="load-grammars", daemon=True).start()

    def follow(self, batch: Batch) -> None:
        """Update the sampling slots with the plan, and begin to compile the grammars of new requests."""
        self._token_sampler.follow(batch)

    def draw(
        self,
        step: int,
        batch: Batch,
        hidden: Tensor,
        logits: Callable[[Tensor, Tensor], Tensor | None],
        embedding_of: EmbeddingOf,
    ) -> Draw:
        """Draw a token for each sampled position of the plan; the rank that samples sends them to its stage.

        `hidden` is [tokens, hidden_size]; `logits(hidden, rows)` gives [rows, vocab_size], or None on the other ranks;
        `embedding_of` is the model's (`CausalModel`).
        """
        group, device = self._placement.group, self._placement.device
        prompts = score_prompts(batch, hidden, self._sampling_slots.prompts, logits, self._token_sampler)
        pooled = None
        if self.draws:
            pooled = self._pooler.select(batch, hidden, self._sampling_slots.pooling, embedding_of)
        if not len(rows := batch.host.logits_rows):
            return Draw(step, batch, prompts=prompts, pooled=pooled)
        if self._graphs is not None and (draw := self._graphs.draw(step, batch, hidden)) is not None:
            draw.prompts, draw.pooled = prompts, pooled
            return draw
        # Samples of one request are drawn from the same position, whose logits are computed once.
        forks = bool((rows[1:] == rows[:-1]).any())
        positions, rows = np.unique(rows, return_inverse=True) if forks else (rows, np.arange(len(rows)))
        wanted = device.from_host(positions) if forks else batch.device.logits_rows
        of_positions = logits(hidden, wanted)
        if of_positions is None:
            tokens = group.broadcast(device.empty((len(rows),), "int32"))
            draw = Draw(step, batch, device.host_copy(tokens))
        else:
            tokens, draw = self._token_sampler.draw(step, batch, of_positions, rows)
            draw.prompts, draw.pooled = prompts, pooled
            group.broadcast(tokens)
        self._slots.remember(batch, tokens)
        return draw

    def finish(self, draw: Draw) -> Sampled:
        """Wait for the tokens; return them with the log-probabilities and embeddings that requests asked for."""
        return self._token_sampler.finish(draw)

    def capture(
        self,
        head: Callable[[Tensor], Tensor | None],
        sample: "DeviceSampler",
        capture: "Capture",
        budget: "CaptureBudget",
    ) -> None:
        """Capture `head` and `sample` for plain rows; see `SamplingGraphs`."""
        from pyllm.workers.sampling_graphs import SamplingGraphs

        placement = self._placement
        self._graphs = SamplingGraphs(
            head,
            sample,
            self._slots,
            self._token_sampler,
            max_num_seqs=self._max_num_seqs,
            hidden_size=self._checkpoint.spec.hidden_size,
            dtype=placement.dtype,
            group=placement.group,
        )
        self._graphs.capture(capture, budget)

    def planned_graph_bytes(self) -> int:
        """The memory that is reserved for the graphs."""
        from pyllm.workers.sampling_graphs import graph_bytes

        spec, placement = self._checkpoint.spec, self._placement
        return graph_bytes(self._max_num_seqs, spec.hidden_size, spec.vocab_size, placement.dtype, placement.group)

    def _wait_for_grammars(self) -> "Grammars":
        self.load_grammars()
        assert self._grammars is not None
        return self._grammars.result()

    def _load(self, loaded: "Future[Grammars]") -> None:
        tokenizer = self._checkpoint.tokenizer
        try:
            from pyllm.workers.grammar.token_masks import Grammars

            grammars = Grammars.load(tokenizer.path, self._checkpoint.spec.vocab_size, tokenizer.eos_token_ids)
        except Exception as error:  # noqa: BLE001 - raised at the first request with a grammar
            loaded.set_exception(error)
        else:
            loaded.set_result(grammars)
