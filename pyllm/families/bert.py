"""BERT (arXiv 1810.04805), RoBERTa (1907.11692), ELECTRA (2003.10555), DistilBERT (1910.01108): encoders without heads.

Learned positions and types, biases everywhere, norms after the residual addition: the stream is what the norms give.
"""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, TensorNames


def read_bert(config: Config) -> ModelSpec:
    """The model that a config.json of BERT describes, without its heads."""
    config.refuse_unless(position_embedding_type="absolute")
    config = config.with_defaults(hidden_act="gelu", layer_norm_eps=1e-12)
    return read_encoder(config, bias=True, positions=config.integer("max_position_embeddings"))


def read_roberta(config: Config) -> ModelSpec:
    """The same for RoBERTa and XLM-RoBERTa, whose first positions are for padding."""
    config.integer("pad_token_id", 1, least=1, most=1)
    positions = config.integer("max_position_embeddings", least=_FIRST_POSITION + 1) - _FIRST_POSITION
    return read_bert(config.with_defaults(layer_norm_eps=1e-5).replaced(max_position_embeddings=positions))


def read_electra(config: Config) -> ModelSpec:
    """The same for ELECTRA, whose embedding may be smaller than its states: this is refused."""
    config.with_defaults(embedding_size=128).refuse_unless(embedding_size=config.integer("hidden_size"))
    return read_bert(config)


def read_distilbert(config: Config) -> ModelSpec:
    """The same for DistilBERT, which has no types of tokens."""
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    config = config.without("intermediate_size", "hidden_act")  # It has other names for them.
    config = config.renamed(**names, intermediate_size="hidden_dim", hidden_act="activation")
    return read_bert(config.replaced(type_vocab_size=0))


def read_encoder(
    config: Config, *, bias: bool, positions: int = 0, gated: bool = False, slopes: tuple[float, ...] | None = None
) -> ModelSpec:
    """An encoder with norms after the residual addition; with rotations unless it has learned `positions` or `slopes`.

    With gates only the last projection of a feed-forward layer has a bias.
    """
    config.refuse_unless(is_decoder=False, add_cross_attention=False)
    norm = read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    rotates = not positions and slopes is None
    features = {} if rotates else {"slopes": slopes, "rope": None}
    layer = LayerSpec(
        attention=read_attention(config, bidirectional=True, bias=bias, output_bias=bias, **features),
        feed_forward=read_feed_forward(config, gated=gated, bias=bias and not gated, output_bias=bias),
        attention_norm=norm,
        feed_forward_norm=norm,
        post_norm_factor=1.0,
    )
    return read_model(
        config.replaced(tie_word_embeddings=True),  # It has no head.
        [layer] * num_layers(config),
        ropes=None if rotates else (),
        positions=positions,
        token_types=config.integer("type_vocab_size", 2, least=0),
    )


_FIRST_POSITION = 2  # of the first token in RoBERTa
POOLER = (".position_ids", "pooler.dense.weight", "pooler.dense.bias")
"""Endings of tensors beside the layers that embeddings do not need."""
_NAMES = TensorNames(
    roots=("", "bert.", "roberta.", "electra."),
    embedding="embeddings.word_embeddings",
    position_embedding="embeddings.position_embeddings",
    type_embedding="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    end_norm="output.LayerNorm",
    layer="encoder.layer.{}.",
    derived=POOLER,
    parts={
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "output.LayerNorm",
        "feed_forward_norm": "attention.output.LayerNorm",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
    },
)
GGUF_ENCODER_NAMES = replace(
    GGUF_NAMES,
    end_norm="layer_output_norm",
    parts=GGUF_PARTS | {"feed_forward_norm": "attn_output_norm"},
    derived=(*GGUF_NAMES.derived, "cls.weight", "cls.bias"),
)
GGUF_ENCODER_FIELDS = {"attention.causal": "is_decoder", "tokenizer.ggml.token_type_count": "type_vocab_size"}
BERT = Family(
    architectures=("BertModel", "BertForMaskedLM"),
    read=read_bert,
    tensors=_NAMES,
    gguf=GgufNames(architectures=("bert",), tensors=GGUF_ENCODER_NAMES, fields=GGUF_ENCODER_FIELDS),
)
ROBERTA = Family(
    architectures=(
        *("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM"),
        *("CamembertModel", "CamembertForMaskedLM"),
    ),
    read=read_roberta,
    tensors=replace(_NAMES, skipped_positions=_FIRST_POSITION),
)
ELECTRA = Family(
    architectures=("ElectraModel", "ElectraForMaskedLM", "ElectraForPreTraining"), read=read_electra, tensors=_NAMES
)
DISTILBERT = Family(
    architectures=("DistilBertModel", "DistilBertForMaskedLM"),
    read=read_distilbert,
    tensors=replace(
        _NAMES,
        roots=("", "distilbert."),
        end_norm="output_layer_norm",
        layer="transformer.layer.{}.",
        parts={
            "attention.query": "attention.q_lin",
            "attention.key": "attention.k_lin",
            "attention.value": "attention.v_lin",
            "attention.output": "attention.out_lin",
            "attention_norm": "output_layer_norm",
            "feed_forward_norm": "sa_layer_norm",
            "feed_forward.up": "ffn.lin1",
            "feed_forward.down": "ffn.lin2",
        },
    ),
)
