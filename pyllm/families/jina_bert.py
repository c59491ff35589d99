"""JinaBERT 2 (arXiv 2310.19923): BERT with ALiBi in both directions in place of positions, and gated GELU."""

from dataclasses import replace

from pyllm.families.bert import BERT, GGUF_ENCODER_FIELDS, GGUF_ENCODER_NAMES, read_encoder
from pyllm.families.config import Config
from pyllm.families.family import Family, GgufNames, alibi_slopes
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_names import GATE_UP


def read(config: Config) -> ModelSpec:
    """The model that a config.json of its authors' code or a GGUF file describes, without its heads."""
    config.refuse_unless(position_embedding_type="alibi", feed_forward_type="geglu")
    config = config.with_defaults(layer_norm_eps=1e-12).replaced(hidden_act="gelu")
    slopes = alibi_slopes(config.integer("num_attention_heads"))
    return read_encoder(config, bias=True, gated=True, slopes=slopes)


_PARTS = {"feed_forward.down": "mlp.wo", "attention_norm": "mlp.layernorm"}

FAMILY = Family(
    architectures=("JinaBertModel", "JinaBertForMaskedLM"),
    read=read,
    tensors=replace(
        BERT.tensors,
        end_norm="mlp.layernorm",
        parts=dict(BERT.tensors.parts) | _PARTS,
        stacked={"mlp.gated_layers": GATE_UP},
    ),
    gguf=GgufNames(
        architectures=("jina-bert-v2",),
        tensors=replace(GGUF_ENCODER_NAMES, stacked={"ffn_up": GATE_UP}),  # Older files have two tensors.
        fields=GGUF_ENCODER_FIELDS,
    ),
)
