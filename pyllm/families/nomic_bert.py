"""NomicBERT (arXiv 2402.01613): BERT with rotations, gated feed-forward layers, and no biases but those of norms."""

from dataclasses import replace

from pyllm.families.bert import GGUF_ENCODER_FIELDS, GGUF_ENCODER_NAMES, POOLER, read_encoder
from pyllm.families.config import Config
from pyllm.families.family import Family, GgufNames
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_names import QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of transformers, of the published files or of a GGUF file describes."""
    config.refuse_unless(
        activation_function="swiglu",
        prenorm=False,
        parallel_block=False,
        use_rms_norm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        moe_every_n_layers=0,
    )
    config = config.renamed(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="n_inner",
        layer_norm_eps="layer_norm_epsilon",
        max_position_embeddings="max_trained_positions",  # Beyond these the published code scales the base.
        rope_theta="rotary_emb_base",
    )
    config = config.with_defaults(rope_theta=1000.0, layer_norm_eps=1e-12, max_position_embeddings=2048)
    return read_encoder(config, bias=False, gated=True)


FAMILY = Family(
    architectures=("NomicBertModel",),
    read=read,
    tensors=TensorNames(
        roots=("", "nomic_bert."),
        embedding="embeddings.word_embeddings",
        type_embedding="embeddings.token_type_embeddings",
        embedding_norm="emb_ln",
        end_norm="norm2",
        layer="encoder.layers.{}.",
        parts={
            "attention.output": "attn.out_proj",
            "attention_norm": "norm2",
            "feed_forward_norm": "norm1",
            "feed_forward.gate": "mlp.fc12",
            "feed_forward.up": "mlp.fc11",
            "feed_forward.down": "mlp.fc2",
        },
        stacked={"attn.Wqkv": QUERY_KEY_VALUE},
        derived=POOLER,
    ),
    gguf=GgufNames(
        architectures=("nomic-bert",),
        tensors=replace(GGUF_ENCODER_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE}),
        fields=GGUF_ENCODER_FIELDS,
    ),
)
