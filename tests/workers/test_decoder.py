"""The decoder's logits for Llama against those of transformers. `tests/families` has the other families."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyllm_kernels import AttentionMetadata, select
from pyllm_kernels.tensors import Array
from transformers import LlamaForCausalLM

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.decoder import Decoder
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.step.batch import PlanBuffer
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model

PROMPT = [5, 17, 200, 31, 8, 8, 250, 100, 3, 77, 41, 9, 160, 22, 61, 12, 33, 2, 90, 140]


class Model:
    """A model with a KV cache, and no runner: gives the logits of every token."""

    def __init__(self, folder: str, dtype: str) -> None:
        checkpoint = read_checkpoint(folder)
        spec = checkpoint.spec
        device = HostDevice()
        kernels = select("auto", device.type)
        placement = WeightPlacement(RankGroup(), dtype, device, kernels)
        self.planner = Planner(num_blocks=8)
        self.model = Decoder(spec, placement)
        self.model.load(weight_reader(checkpoint, TensorTable(checkpoint)))
        self.kv_cache = KVCache(KVCacheShape.of(spec, self.planner.block_size, 1, dtype), 8, device)
        self.slots = Slots(2, 4, device)
        self.position_tables = PositionTables.of(spec, 64, device)
        self.plans = PlanBuffer(device)

    def logits(self, *rows: Row) -> Array:
        step, frame = self.planner.step(*rows)
        batch = self.plans.load(step.counts, frame)
        self.slots.apply(batch)
        plan = batch.device
        attention = AttentionMetadata(
            self.slots.block_tables,
            plan.slots,
            plan.query_starts,
            plan.sequence_lengths,
            batch.max_query_length,
            batch.max_sequence_length,
            batch.num_tokens,
        )
        context = ForwardContext(
            select("reference", "cpu"),
            self.kv_cache,
            (attention,),
            plan.positions,
            plan.slot_mapping[None],
            self.position_tables,
        )
        logits: Array | None = self.model.logits(self.model(plan.tokens, context)[0])
        assert logits is not None
        return logits


@pytest.mark.parametrize(
    "options",
    [{}, {"tied": False}, {"heads": 8, "kv_heads": 2, "head_dim": 32}, {"kv_heads": 6, "rope_theta": 500000.0}],
    ids=["tied", "untied", "wide heads", "no groups"],
)
def test_logits_equal_those_of_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write_tiny_model(tmp_path, **options)
    oracle = LlamaForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager")
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    model = Model(folder, "float32")
    model.planner.start(0)
    model.planner.start(1)
    np.testing.assert_allclose(model.logits(Row(0, PROMPT)), expected, rtol=1e-4, atol=1e-4)
    # The same prompt in chunks, the last of one token, beside a row of its own.
    chunks = [model.logits(Row(1, PROMPT[:7])), model.logits(Row(1, PROMPT[7:19]), Row(0, [4]))[:12]]
    chunks.append(model.logits(Row(0, [9]), Row(1, PROMPT[19:]))[1:])
    np.testing.assert_allclose(np.concatenate(chunks), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(tmp_path: Path, dtype: str) -> None:
    folder = write_tiny_model(tmp_path)
    exact, rounded = (Model(folder, each) for each in ("float32", dtype))
    for model in (exact, rounded):
        model.planner.start(0)
    difference = exact.logits(Row(0, PROMPT)) - rounded.logits(Row(0, PROMPT)).astype(np.float32)
    assert 0 < np.abs(difference).max() < 0.5
