"""The names of a model's tensors in files: of transformers, of llama.cpp, and what a family changes in them.

Knows no file.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

LLAMA_PARTS = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward.router": "mlp.gate",
    "feed_forward.correction": "mlp.gate.e_score_correction",
    "feed_forward.experts.gate": "mlp.experts.{}.gate_proj",
    "feed_forward.experts.up": "mlp.experts.{}.up_proj",
    "feed_forward.experts.down": "mlp.experts.{}.down_proj",
    "feed_forward.shared.gate": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.up": "mlp.shared_experts.up_proj",
    "feed_forward.shared.down": "mlp.shared_experts.down_proj",
}
"""The parts of a layer, in transformers' names for Llama, which most families share."""
PER_LAYER_PARTS = {
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.projection": "per_layer_projection",
    "per_layer.norm": "post_per_layer_input_norm",
}
"""The parts of per-layer inputs, in transformers' names."""
POST_NORM_PARTS = LLAMA_PARTS | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""The same for layers with a norm after attention and after feed-forward alone (OLMo 2)."""
GGUF_PARTS = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "attention_output_norm": "post_attention_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.experts.gate": "ffn_gate_exps",
    "feed_forward.experts.up": "ffn_up_exps",
    "feed_forward.experts.down": "ffn_down_exps",
    "feed_forward.correction": "exp_probs_b",
    "feed_forward.shared.gate": "ffn_gate_shexp",
    "feed_forward.shared.up": "ffn_up_shexp",
    "feed_forward.shared.down": "ffn_down_shexp",
    "feed_forward.shared_gate": "ffn_gate_inp_shexp",
    "feed_forward_output_norm": "post_ffw_norm",
}
"""The parts of a layer, in llama.cpp's names."""
GGUF_PER_LAYER_PARTS = {
    "per_layer.gate": "inp_gate",
    "per_layer.projection": "proj",
    "per_layer.norm": "post_norm",
}
"""The parts of per-layer inputs, in llama.cpp's names."""


EXPERTS = ("feed_forward.experts.gate", "feed_forward.experts.up", "feed_forward.experts.down")
"""The parts of an expert; many files stack the first two in one tensor."""
OF_TEXT_MODELS = ("language_model.model.", "model.language_model.", "model.text_model.")
"""Prefixes of the text model's tensors within a model for images or sounds, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The names that a kind of file gives to a family's tensors.

    - `skipped_positions`: rows of the position embedding before that of the first token.
    - `end_norm`: the norm at the end of a layer. It is the `attention_norm` of the next layer, and the last one `norm`;
      that of the first layer is `embedding_norm`.
    - `parts`: an expert's name has its number at {}, or names a tensor [experts, rows, columns].
    - `roots`: possible prefixes of the embedding, the norm and the layers; the first that fits is used.
    - `stacked`: tensors that hold several parts of a layer, stacked by rows; in files without a tensor of each.
    - `alternating`: the `stacked` tensors whose parts have interleaved rows.
    - `grouped`: the `stacked` tensors that have, for each key head, all that belongs to it: its query heads, itself and
      its value heads; or for each query head the query and its gate. With `groups` there are so many, of equal size.
    - `aliases`: other names of tensors of a layer, in files without the first one: of a part, or of its weight or bias
      (`part.weight`).
    - `bare`: tensors of a layer without `.weight` after the name, and with `_bias` in place of `.bias`.
    - `interleaved`: query and key have the pairs of RoPE side by side.
    - `offset_added`: the scales of norms with `unit_offset` already include the 1.
    - `has_negative_decays`: `recurrence.decay_scale` is `-exp` of what transformers has.
    - `transposed`: parts of a layer whose float matrices have one column an output, as in GPT-2's Conv1D.
    - `derived`: endings of tensors that follow from the configuration and are left out.
    - `are_all`: a tensor that is no parameter means a feature that is not supported, and is refused as in llama.cpp.
      Otherwise such tensors are skipped as in transformers: a vision tower, heads and masks left from training, layers
      beyond num_hidden_layers.
    """

    roots: tuple[str, ...] = ("model.", *OF_TEXT_MODELS, "")
    embedding: str = "embed_tokens"
    position_embedding: str = "embed_positions"
    skipped_positions: int = 0
    type_embedding: str = "token_type_embeddings"
    relative_bias: str = "relative_attention_bias"
    embedding_norm: str = "embed_norm"
    end_norm: str = ""
    norm: str = "norm"
    per_layer_embedding: str = "embed_tokens_per_layer"
    per_layer_projection: str = "per_layer_model_projection"
    per_layer_norm: str = "per_layer_projection_norm"
    streams_in: str = "altup_projections"
    streams_out: str = "altup_unembed_projections"
    heads: tuple[str, ...] = ("lm_head", "language_model.lm_head")
    layer: str = "layers.{}."
    parts: Mapping[str, str] = field(default_factory=lambda: LLAMA_PARTS)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alternating: frozenset[str] = frozenset()
    grouped: frozenset[str] = frozenset()
    groups: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    bare: frozenset[str] = frozenset({LLAMA_PARTS["feed_forward.correction"]})
    interleaved: bool = False
    offset_added: bool = False
    has_negative_decays: bool = False
    transposed: frozenset[str] = frozenset()
    derived: tuple[str, ...] = (
        *(".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"),
        *(".position_ids", ".masked_bias"),
    )
    are_all: bool = False

    def of_files(self, tensors: Container[str], prefix: str) -> "TensorNames":
        """These names, for a layer of files whose parts may be in tensors of their own, or in one.

        transformers 5 keeps all experts of a layer in one tensor; llama.cpp's converter stacks parts if it is told to.
        """
        may_be_fused = GGUF_FUSED.keys() - self.stacked.keys() if self.are_all else ()
        fused = {name: GGUF_FUSED[name] for name in may_be_fused if f"{prefix}{name}.weight" in tensors}
        if fused:
            return replace(self, stacked={**self.stacked, **fused}).of_files(tensors, prefix)
        alone = {
            name
            for name, parts in self.stacked.items()
            if all(f"{prefix}{self.parts.get(part)}.weight" in tensors for part in parts)
        }
        if alone:
            kept = {name: parts for name, parts in self.stacked.items() if name not in alone}
            return replace(self, stacked=kept).of_files(tensors, prefix)
        experts, _, _ = self.parts.get("feed_forward.experts.down", "").partition(".{}.")
        gate_up, down = f"{experts}.gate_up_proj", f"{experts}.down_proj"
        if f"{prefix}{gate_up}" not in tensors:
            return self
        return replace(
            self,
            parts={**self.parts, "feed_forward.experts.down": down},
            stacked={**self.stacked, gate_up: EXPERTS[:2]},
            bare=self.bare | {gate_up, down},
        )

    def source_of(self, part: str) -> tuple[str, tuple[str, ...]]:
        """The name of the tensor that holds a part of a layer, and all parts that it holds, in their order."""
        for name, parts in self.stacked.items():
            if part in parts:
                return name, parts
        return self.parts[part], (part,)

    def tensor_of(self, source: str, kind: str) -> str:
        """The whole name of the weight or the bias of a source."""
        if source not in self.bare:
            return f"{source}.{kind}"
        return source if kind == "weight" else f"{source}_{kind}"


HUGGINGFACE_NAMES = TensorNames()
GATE_UP = ("feed_forward.gate", "feed_forward.up")
"""Parts that many files stack in one tensor."""
QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")
"""The same of attention."""
GGUF_FUSED = {
    "attn_qkv": QUERY_KEY_VALUE,
    "ffn_gate_up_exps": EXPERTS[:2],
}
"""What llama.cpp's converter stacks with `--fuse-qkv` and `--fuse-gate-up-exps`, in files of any architecture."""
GGUF_NAMES = TensorNames(
    roots=("",),
    embedding="token_embd",
    position_embedding="position_embd",
    type_embedding="token_types",
    embedding_norm="token_embd_norm",
    norm="output_norm",
    per_layer_embedding="per_layer_token_embd",
    per_layer_projection="per_layer_model_proj",
    per_layer_norm="per_layer_proj_norm",
    streams_in="altup_proj",
    streams_out="altup_unembd_proj",
    heads=("output",),
    layer="blk.{}.",
    parts=GGUF_PARTS,
    offset_added=True,
    has_negative_decays=True,
    derived=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    are_all=True,
)
"""llama.cpp's names for a whole model."""
