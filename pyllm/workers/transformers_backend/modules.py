"""pyllm's layers as torch modules, which replace those of a transformers model."""

from collections import Counter
from collections.abc import Callable, Sequence
from inspect import signature

import torch
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.norm import rms_norm
from pyllm_kernels.tensors import dtype_name
from torch import Tensor, nn

from pyllm.families.spec import LinearSpec, ModelSpec
from pyllm.workers.devices.torch_device import torch_dtype
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader


class Linears:
    """This rank's share of linear layers with a common input, computed as one product."""

    def __init__(self, specs: Sequence[LinearSpec], placement: WeightPlacement) -> None:
        (outputs, inputs), split, bias = specs[0].shape, specs[0].split, specs[0].bias
        self.num_inputs = inputs
        self._names = [spec.name for spec in specs]
        self._dtype = torch_dtype(placement.dtype)
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()
        self.layer: ColumnParallelLinear | RowParallelLinear
        if split == "inputs":
            self.layer = RowParallelLinear(inputs, outputs, placement, bias)
            self._sizes = [outputs]
        else:
            sizes = tuple(spec.shape[0] for spec in specs)
            shares = [slice(0, size) for size in sizes] if split == "whole" else None
            self.layer = ColumnParallelLinear(inputs, sizes, placement, bias, shares)
            self._sizes = self.layer.sizes

    def __len__(self) -> int:
        return len(self._names)

    def load(self, reader: WeightReader) -> None:
        """Read the matrices and biases."""
        self.layer.load(reader, *self._names)

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of all layers, side by side: [..., inputs] -> [..., this rank's outputs of all]."""
        products: Tensor = self.layer(_rows(x, self._dtype))
        return products.view(*x.shape[:-1], -1)

    def part(self, index: int, x: Tensor) -> Tensor:
        """The output of one of the layers; the first call with an input computes the outputs of all layers."""
        if len(self) == 1:
            return self(x)
        if x is not self._input:
            self._input, self._parts = x, torch.split(self(x), self._sizes, dim=-1)
        part = self._parts[index]
        if index == len(self) - 1:
            self._input, self._parts = None, ()
        return part


class Linear(nn.Module):
    """One of several linear layers. [..., inputs] -> [..., outputs]."""

    def __init__(self, linears: Linears, index: int, placement: WeightPlacement) -> None:
        super().__init__()
        self.linears, self.index = linears, index
        self.weight = placement.empty(0)  # Some models read its dtype.

    def __call__(self, x: Tensor) -> Tensor:  # without hooks, which take as long as a small product
        return self.linears.part(self.index, x)


class Embedding(nn.Module):
    """The embedding: tokens [...] -> [..., hidden_size]."""

    def __init__(self, rows: VocabularyParallelEmbedding) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.rows(tokens.reshape(-1).to(torch.int32))
        return vectors.view(*tokens.shape, -1)


class Head(nn.Module):
    """The head: [..., hidden_size] -> logits [..., vocab_size]; zeros on ranks other than the first."""

    def __init__(self, rows: VocabularyParallelEmbedding, placement: WeightPlacement) -> None:
        super().__init__()
        self._head = VocabularyParallelHead(rows, placement)
        self._vocab_size = rows.vocab_size
        self._dtype = torch_dtype(placement.dtype)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor | None = self._head(_rows(x, self._dtype))
        if logits is None:
            return x.new_zeros((*x.shape[:-1], self._vocab_size))
        return logits.view(*x.shape[:-1], -1)


class Replacements:
    """Puts pyllm's layers into a model, and fills them."""

    def __init__(self, model: nn.Module, spec: ModelSpec, placement: WeightPlacement) -> None:
        assert spec.transformers is not None
        self.linears = [Linears(linears, placement) for linears in spec.transformers.linears]
        for ours, linears in zip(self.linears, spec.transformers.linears, strict=True):
            for index, linear in enumerate(linears):
                _replace(model, linear.name, Linear(ours, index, placement))
        size = (spec.vocab_size, spec.hidden_size)
        self.vocabulary: dict[str, VocabularyParallelEmbedding] = {}
        embedding, head = spec.transformers.embedding, spec.transformers.head
        if embedding:
            self.vocabulary[embedding] = VocabularyParallelEmbedding(*size, placement)
            _replace(model, embedding, Embedding(self.vocabulary[embedding]))
        if head:
            if not spec.tie_word_embeddings:
                self.vocabulary[head] = VocabularyParallelEmbedding(*size, placement)
            _replace(model, head, Head(self.vocabulary.get(head) or self.vocabulary[embedding], placement))

    def load(self, reader: WeightReader) -> None:
        """Read every parameter of these layers."""
        for path, rows in self.vocabulary.items():
            rows.load(reader, f"{path}.weight")
        for linears in self.linears:
            linears.load(reader)


class RMSNorm(nn.Module):
    """pyllm's RMS norm over the last dimension, for inputs of the placement's dtype; `original` for others."""

    def __init__(self, original: nn.Module, weight: Tensor, epsilon: float, placement: WeightPlacement) -> None:
        super().__init__()
        self._original, self._placement = original, placement
        self._epsilon = epsilon
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:  # without hooks, as `Linear`
        if dtype_name(x.dtype) != self._placement.dtype:
            found: Tensor = self._original(x)
            return found
        rows = _rows(x, x.dtype)
        normed: Tensor = self._placement.kernels[rms_norm](rows, self.weight, self._epsilon)
        return normed.view(x.shape)


def replace_norms(model: nn.Module, placement: WeightPlacement) -> None:
    """Replace loaded RMS norms by pyllm's, where a test shows the same results."""
    for path, module in list(model.named_modules()):
        parameters = dict(module.named_parameters())
        epsilons = [getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon")]
        epsilon = next((found for found in epsilons if isinstance(found, float)), None)
        if type(module).__name__.endswith("RMSNorm") and parameters.keys() == {"weight"} and epsilon is not None:
            weight = parameters["weight"].detach()
            for scale in (weight, 1 + weight.float()):
                ours = RMSNorm(module, scale, epsilon, placement)
                if _give_the_same(ours, module, len(weight), placement):
                    _replace(model, path, ours)
                    break


class GatedFeedForward:
    """`down(activation(gate(x)) * up(x))`, with one product for gate and up, and one op between the products."""

    def __init__(self, gate_up: Linears, kind: str, down: Linear, placement: WeightPlacement) -> None:
        self._gate_up, self._kind, self._down = gate_up, kind, down
        self._placement = placement

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self.activated(x))

    def activated(self, x: Tensor) -> Tensor:
        """The input of `down`."""
        products = self._gate_up(x)
        rows = products.view(-1, products.shape[-1])
        activated: Tensor = self._placement.kernels[activation](rows, self._kind)
        return activated.view(*x.shape[:-1], -1)


def fuse_feed_forwards(model: nn.Module, placement: WeightPlacement) -> None:
    """Replace gated feed-forward layers by `GatedFeedForward`, where a test shows the same results."""
    for module in model.modules():
        linears = [(name, child) for name, child in module.named_children() if isinstance(child, Linear)]
        groups = Counter(child.linears for _, child in linears)
        if sorted(groups.values()) != [1, 2] or len(signature(module.forward).parameters) != 1:
            continue
        (gate_up, _), _ = groups.most_common()
        if len(gate_up) != 2:
            continue  # another layer has the same input, such as parallel attention
        name, down = next((name, child) for name, child in linears if child.linears is not gate_up)
        for kind in ("silu", "gelu", "gelu_tanh"):
            ours = GatedFeedForward(gate_up, kind, down, placement)
            setattr(module, name, nn.Identity())
            try:
                same = _give_the_same(ours.activated, module, gate_up.num_inputs, placement)
            finally:
                setattr(module, name, down)
            if same:
                module.forward = ours
                break


def _give_the_same(one: Callable[[Tensor], Tensor], other: nn.Module, size: int, placement: WeightPlacement) -> bool:
    """Whether both agree on rows of different magnitudes, up to rounding of the results and of float32 sums."""
    rows = torch.randn((8, size), generator=torch.Generator().manual_seed(0))
    dtype = torch_dtype(placement.dtype)
    rows = (rows * torch.logspace(-2, 2, 8).unsqueeze(1)).to(str(placement.device), dtype)
    found, expected = one(rows), other(rows)
    steps = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    most = 4 * steps[0] * expected.abs() + 4 * steps[1] * expected.abs().amax(dim=-1, keepdim=True)
    return found.dtype == expected.dtype and bool(((found - expected).abs() <= most).all())


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., size] as the rows of a contiguous matrix of this dtype."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.dtype is dtype and rows.is_contiguous() else rows.to(dtype).contiguous()


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, name, module)
