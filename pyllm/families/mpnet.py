"""MPNet (arXiv 2004.09297): an encoder as RoBERTa, whose layers share a relative position bias."""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.bert import ROBERTA, read_roberta
from pyllm.families.config import Config
from pyllm.families.family import Family
from pyllm.families.spec import ModelSpec, RelativeBiasSpec


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes, without its heads."""
    config.refuse_unless(relative_attention_num_buckets=_BUCKETS)  # transformers takes no other number into account.
    spec = read_roberta(config.with_defaults(layer_norm_eps=1e-12).replaced(type_vocab_size=0))
    bias = RelativeBiasSpec(length=spec.positions, buckets=_BUCKETS)
    layers = (
        replace_struct(layer, attention=replace_struct(layer.own_attention, relative_bias=bias))
        for layer in spec.layers
    )
    return replace_struct(spec, layers=tuple(layers))


_BUCKETS = 32


FAMILY = Family(
    architectures=("MPNetModel", "MPNetForMaskedLM"),
    read=read,
    tensors=replace(
        ROBERTA.tensors,
        roots=("", "mpnet."),
        relative_bias="encoder.relative_attention_bias",
        parts=dict(ROBERTA.tensors.parts)
        | {
            "attention.query": "attention.attn.q",
            "attention.key": "attention.attn.k",
            "attention.value": "attention.attn.v",
            "attention.output": "attention.attn.o",
            "feed_forward_norm": "attention.LayerNorm",
        },
    ),
)
