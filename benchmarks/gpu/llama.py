"""A decode step of Llama-3.1-8B's shape with random weights: pyllm's layers, a CUDA graph, logits, greedy tokens.

Needs pyllm itself beside the kernels. Does not know the scheduler: the step has the launches of a worker for a batch,
without its copies from and to the host.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from pyllm_kernels import AttentionMetadata, AttentionShape, Kernels, MatrixRows, dtype_name
from pyllm_kernels.gpu import sampling
from pyllm_kernels.ops.paged_attention import plan_attention
from pyllm_kernels.tensors import address
from torch import Tensor

from benchmarks.gpu.figures import Bench, Figure
from pyllm.families import llama
from pyllm.families.config import Config
from pyllm.families.spec import ModelSpec
from pyllm.workers.decoder import Decoder
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WHOLE
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots

# Rows, tokens in the cache of each, and the limit of a step on an H200 in milliseconds.
Cases = dict[str, tuple[int, int, float]]
STEPS: Cases = {"batch 1": (1, 16, 4.6), "batch 64 x 1k": (64, 1024, 7.0), "batch 256 x 1k": (256, 1024, 16.0)}
BLOCK_SIZE = 16
_NUM_STARTS = 1 << 21
_STEP = 16 * 997  # an odd number of times 64 bytes


def spec(**changes: int) -> ModelSpec:
    """Llama-3.1-8B's shape, or one that differs in some fields of its config.json."""
    sizes = {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000,
    }
    return llama.read(Config({"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5} | sizes | changes))


class RandomWeights:
    """A reader of random weights. Rows on the host are windows into a few numbers, as 8 billion would take too long.

    No two of up to 131,072 rows of a matrix begin at the same number.
    """

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.float32)

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        if len(shape) == 1:
            out.fill_(1)
        else:
            out.normal_(std=shape[-1] ** -0.5)

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`."""
        num_rows, num_columns = (len(range(size)[part]) for size, part in zip(shape, (rows, columns), strict=True))
        if len(self._numbers) < _NUM_STARTS + num_columns:
            self._numbers = np.random.default_rng(0).standard_normal(_NUM_STARTS + num_columns, np.float32)
        numbers = self._numbers * np.float32(shape[1] ** -0.5)
        addresses = address(numbers) + np.arange(num_rows) * _STEP % _NUM_STARTS * numbers.itemsize
        return MatrixRows(dtype_name(numbers.dtype), num_columns, addresses, (numbers,))

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""


@dataclass(frozen=True)
class Model:
    """The model on a device, with the inputs of its passes."""

    decoder: Decoder
    placement: WeightPlacement
    spec: ModelSpec
    position_tables: PositionTables

    @classmethod
    def random(cls, shape: ModelSpec, kernels: Kernels, device: torch.device, dtype: torch.dtype) -> "Model":
        """A model with random weights that keep the magnitude of activations."""
        own = TorchDevice(device)
        placement = WeightPlacement(RankGroup(), dtype_name(dtype), own, kernels)
        decoder = Decoder(shape, placement)
        decoder.load(RandomWeights())
        return cls(decoder, placement, shape, PositionTables.of(shape, shape.max_position_embeddings, own))

    def decode_step(self, num_rows: int, context: int) -> Callable[[], Tensor]:
        """A step of one token for each of `num_rows` sequences of `context` tokens; it returns the next tokens.

        It is planned for any length, like a graph, so that splits are merged wherever a longer context would have
        several.
        """
        device, kernels = self.placement.device, self.placement.kernels
        blocks_of_row = -(-context // BLOCK_SIZE)
        max_model_len = self.spec.max_position_embeddings
        cache_shape = KVCacheShape.of(self.spec, BLOCK_SIZE, 1, self.placement.dtype)
        kv_cache = KVCache(cache_shape, num_rows * blocks_of_row, device)
        slots = Slots(num_rows, -(-max_model_len // BLOCK_SIZE), device)
        order = torch.randperm(num_rows * blocks_of_row, generator=torch.Generator().manual_seed(0))
        slots.block_tables[:, :blocks_of_row] = order.view(num_rows, blocks_of_row)
        rows = device.from_host(np.arange(num_rows, dtype=np.int32))
        tokens = torch.full_like(rows, -1)
        last = context - 1
        positions = torch.full_like(rows, last)
        slot_mapping = slots.block_tables[:, last // BLOCK_SIZE] * BLOCK_SIZE + last % BLOCK_SIZE
        metadata = AttentionMetadata(
            block_tables=slots.block_tables,
            slots=rows,
            query_starts=device.from_host(np.arange(num_rows + 1, dtype=np.int32)),
            sequence_lengths=torch.full_like(rows, context),
            max_query_length=1,
            max_sequence_length=max_model_len,
            num_tokens=num_rows,
        )
        shape = AttentionShape(
            self.spec.attention.heads,
            self.spec.attention.kv_heads,
            self.spec.attention.head_size,
            self.placement.dtype,
        )
        zeros, ones, no_top_k = (torch.full((num_rows,), number, device=rows.device) for number in (0.0, 1.0, 0))

        def step() -> Tensor:
            forward = ForwardContext(
                kernels=kernels,
                kv_cache=kv_cache,
                attention=(kernels[plan_attention](metadata, shape),),
                positions=positions,
                slot_mapping=slot_mapping.unsqueeze(0),
                position_tables=self.position_tables,
            )
            known = torch.where(tokens < 0, slots.last_tokens[rows], tokens)
            logits = self.decoder.logits(self.decoder(known, forward)[0][rows])
            assert logits is not None
            drawn = sampling.sample(
                logits, temperature=zeros, top_k=no_top_k, top_p=ones, min_p=zeros, uniforms=zeros, rows=rows
            )
            slots.last_tokens[rows] = drawn.clamp(min=0)
            return drawn

        return step


@torch.inference_mode()
def steps(bench: Bench, shape: ModelSpec | None = None, cases: Cases = STEPS) -> Iterator[Figure]:
    """The steps of the table."""
    try:
        model = Model.random(shape or spec(), bench.kernels, bench.device, bench.dtype)
        for case, (num_rows, context, goal) in cases.items():
            value = bench.timer(model.decode_step(num_rows, context)) * 1e3
            yield {
                "name": "gpu.llama_8b_step",
                "case": case,
                "value": round(value, 3),
                "unit": "ms",
                "goal": goal,
                "met": value <= goal,
            }
    except torch.OutOfMemoryError as error:
        yield {"name": "gpu.llama_8b_step", "case": f"the card is too small for this one: {error}"[:120]}
