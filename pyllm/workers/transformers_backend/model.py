"""A model that transformers computes, in a worker: eager, over the paged KV cache."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import PackedLinear, stay_awake
from pyllm_kernels.tensors import Array
from pyllm_kernels.torch_bridge import as_tensor
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import LoadStateDictConfig

from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from pyllm.workers.devices.torch_device import torch_dtype
from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WeightReader
from pyllm.workers.sampling.dense import unit_length
from pyllm.workers.transformers_backend.attention_interface import NAME, AttentionCall, attending
from pyllm.workers.transformers_backend.build import build, quiet
from pyllm.workers.transformers_backend.meta_run import hidden_of, inputs
from pyllm.workers.transformers_backend.modules import Replacements, fuse_feed_forwards, replace_norms


class TransformersModel:
    """The whole model, or one rank's share of it. `others` are the file's tensors that transformers loads itself."""

    def __init__(
        self, spec: ModelSpec, placement: WeightPlacement, others: dict[str, Array], max_model_len: int
    ) -> None:
        assert spec.transformers is not None, "the probe found no model of transformers"
        self.spec, self.dtype = spec, torch_dtype(placement.dtype)
        self._placement, self._max_model_len = placement, max_model_len
        self._others = {name: as_tensor(array) for name, array in others.items()}
        self._model = build(spec.transformers.config, self.dtype, "cpu")
        # It needs the model's original parameters, so read it before the replacements.
        self._mapping: list[Any] = get_model_conversion_mapping(self._model)
        self._replacements = Replacements(self._model, spec, placement)
        self._base = self._model.get_submodule(spec.transformers.base)
        self._first_position = spec.transformers.first_position
        # torch does little work between the kernels' ops, and waking a thread would take longer.
        self._threads_stay_awake = placement.device.type == "cpu" and not spec.transformers.torch_computes
        self._positions: Tensor | None = None
        for module in self._base.modules():
            if isinstance(module, nn.Embedding) and "position_ids" in signature(type(module).forward).parameters:
                module.register_forward_pre_hook(self._give_positions, with_kwargs=True)
        self._layers: list[PagedAttention] = []

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter: those of pyllm's layers from `reader`, the others by transformers.

        Raises:
            ConfigError: a parameter is missing, or has another shape.
        """
        self._replacements.load(reader)
        plan = self._model._get_dtype_plan(self.dtype)  # modules that stay float32
        settings = LoadStateDictConfig(dtype=self.dtype, dtype_plan=plan, weight_mapping=self._mapping)
        with quiet():
            found, _ = convert_and_load_state_dict_in_model(self._model, self._others, settings)
        self._others = {}
        if found.mismatched_keys or found.conversion_errors:
            wrong = [*(name for name, *_ in found.mismatched_keys), *found.conversion_errors]
            raise ConfigError(f"parameters of {self.spec.architecture} do not fit its tensors: {', '.join(wrong[:5])}")
        self._tie(found.missing_keys)
        for module in self._model.modules():
            if hasattr(module, "rope_type"):
                _fix_rotation(module, self._max_model_len)
        self._model.to(str(self._placement.device))  # type: ignore[arg-type]  # a wrapper's type
        replace_norms(self._model, self._placement)
        fuse_feed_forwards(self._model, self._placement)

    def _tie(self, missing: set[str]) -> None:
        """Tie missing parameters to their sources.

        Raises:
            ConfigError: another parameter is missing.
        """
        here = dict(self._model.named_parameters())
        tied = self._model.all_tied_weights_keys
        self._model.all_tied_weights_keys = {one: other for one, other in tied.items() if {one, other} <= here.keys()}
        self._model.tie_weights(missing_keys=missing, recompute_mapping=False)
        ignored = self._model._keys_to_ignore_on_load_missing or ()
        lost = [name for name in missing & here.keys() if not any(re.search(pattern, name) for pattern in ignored)]
        if lost:
            listed = ", ".join(sorted(lost)[:5])
            raise ConfigError(f"the model's files have no tensor for {len(lost)} parameters: {listed}")

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix of pyllm's layers but the embedding and the head, in order."""
        for linears in self._replacements.linears:
            packed = linears.layer.packed
            yield from (packed if isinstance(packed, tuple) else (packed,))

    @property
    def padding(self) -> int | None:
        """The padding token, which some models skip when they count positions."""
        token: int | None = self._model.config.get_text_config(decoder=True).pad_token_id
        return token

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the embedding and the head, if pyllm's layers replace them."""
        return sum(rows.packed.nbytes for rows in self._replacements.vocabulary.values())

    def __call__(self, tokens: Tensor, context: ForwardContext) -> tuple[Tensor, ...]:
        """See `CausalModel`."""
        self._positions = context.positions.long() + self._first_position
        attend = _Pass(self, context)
        stay_awake(self._threads_stay_awake)
        try:
            with attending(attend):
                output = self._base(**inputs(tokens.long().unsqueeze(0), self._positions.unsqueeze(0)))
        finally:
            stay_awake(False)
        attend.finish()
        return (hidden_of(output)[0].to(self.dtype).contiguous(),)

    def embedding_of(self, pooled: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See `CausalModel`."""
        return unit_length(pooled)

    def logits(self, x: Tensor) -> Tensor | None:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size] on rank 0; None on the others."""
        nothing = torch.zeros((1, len(x)), dtype=torch.long, device=x.device)
        with self._given(x):
            logits: Tensor = self._model(**inputs(nothing, nothing)).logits
        return logits[0].contiguous() if self._placement.group.rank == 0 else None

    def layer(self, index: int, call: AttentionCall) -> PagedAttention:
        """The attention layer of a call, by the call's index in a forward pass; created at the first call.

        Raises:
            ConfigError: the model calls attention more often than when it was probed.
        """
        if index == len(self.spec.layers):
            raise ConfigError(f"{self.spec.architecture} calls attention more often than when it was probed")
        if index == len(self._layers):
            spec, sinks = self.spec.layers[index].own_attention, call.sinks
            if sinks is not None:
                sinks = sinks.detach()[self._placement.share(spec.heads)].float().contiguous()
            self._layers.append(PagedAttention(index, spec, sinks=sinks))
        return self._layers[index]

    @property
    def is_exact(self) -> bool:
        """Whether the model computes in float32 and is not quantised."""
        return self.dtype == torch.float32 and self._placement.quantization == "none"

    def own_attention(self, tokens: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Hidden states [tokens, hidden_size] and logits [tokens, vocab_size] of int [tokens], with an attention of
        transformers."""
        self._positions = None
        self._model.set_attn_implementation(name)
        try:
            output = self._base(input_ids=tokens.long().unsqueeze(0), use_cache=False)
            whole = self._model(input_ids=tokens.long().unsqueeze(0), use_cache=False)
        finally:
            self._model.set_attn_implementation(NAME)
        return hidden_of(output)[0], whole.logits[0]

    def _give_positions(self, _: nn.Module, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace positions for the embedding of positions, which some decoders count from the start of the batch."""
        counted = named.get("position_ids")
        if self._positions is not None and counted is not None and counted.numel() == len(self._positions):
            named["position_ids"] = self._positions.view(counted.shape)
        return arguments, named

    @contextmanager
    def _given(self, hidden: Tensor) -> Iterator[None]:
        """Make the base model return these hidden states within this block, so that only the head is computed."""
        output = _Hidden(last_hidden_state=hidden.unsqueeze(0))
        self._base.forward = lambda *_, **__: output
        try:
            yield
        finally:
            del self._base.forward


def _fix_rotation(rotation: Any, max_model_len: int) -> None:
    """Fix the frequencies for contexts up to `max_model_len`, as `families/rope.py` does for pyllm's own models.

    transformers chooses them by the longest sequence of a batch.

    Raises:
        ConfigError: they still depend on the batch.
    """
    first, last = (torch.full((1, 1), position) for position in (0, max_model_len - 1))
    nothing = torch.zeros(1)
    kinds = rotation.rope_type if isinstance(rotation.rope_type, dict) else {None: rotation.rope_type}
    for layer_type, kind in kinds.items():
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
            which = [] if layer_type is None else [layer_type]
            chosen = rotation(nothing, last, *which)
            if layer_type is None:
                rotation.rope_type = "default"
            else:
                rotation.rope_type[layer_type] = "default"
            rotation(nothing, first, *which)
            if not all(map(torch.equal, chosen, rotation(nothing, last, *which))):
                raise ConfigError(f"the rotation {type(rotation).__name__} depends on the other sequences of a step")


class _Hidden(BaseModelOutputWithPast):
    """An output with hidden states alone; other attributes are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)


class _Pass:
    """Computes the calls of attention in one forward pass, which come in the order of the layers."""

    def __init__(self, model: TransformersModel, context: ForwardContext) -> None:
        self._model, self._context = model, context
        self._index = 0

    def finish(self) -> None:
        """Refuse a pass with fewer calls than when the model was probed."""
        if self._index != (expected := len(self._model.spec.layers)):
            name = self._model.spec.architecture
            raise ConfigError(f"{name} called attention {self._index} times, and {expected} times when it was probed")

    def __call__(self, call: AttentionCall) -> Tensor:
        layer, self._index = self._model.layer(self._index, call), self._index + 1
        size = self._model.spec.attention.head_size
        query, key, value = (_padded(part, size) for part in (call.query, call.key, call.value))
        attended: Tensor = layer(query, key, value, self._context)
        return attended[..., : call.value.shape[2]]


def _padded(part: Tensor, size: int) -> Tensor:
    """Heads [tokens, heads, size] in the layout of the kernels: contiguous within a token, and padded to `size`.

    Zeros add nothing to scores, nor to sums of values.
    """
    if part.shape[2] != size:
        return pad(part, (0, size - part.shape[2]))
    return part if part.stride()[1:] == (size, 1) else part.contiguous()
