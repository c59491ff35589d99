"""GTE (arXiv 2407.19669): BERT with rotations and gates, whose authors call its class New."""

from msgspec.structs import replace

from pyllm.families.bert import POOLER, read_encoder
from pyllm.families.config import Config
from pyllm.families.family import Family
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_names import GATE_UP, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes, without its heads."""
    config.refuse_unless(position_embedding_type="rope", layer_norm_type="layer_norm", logn_attention_scale=False)
    config = config.with_defaults(hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=1)
    if "rope_parameters" not in config:
        config = _with_linear_rope(config.with_defaults(rope_theta=10_000.0))
    spec = read_encoder(config, bias=True, gated=True)
    return replace(spec, max_position_embeddings=config.integer("max_position_embeddings"))


def _with_linear_rope(config: Config) -> Config:
    """The authors' scaling `ntk` as a larger base with linear scaling; their contexts include it."""
    scaling = config.section("rope_scaling")
    if scaling.text("type", "") != "ntk":
        return config
    scaling.refuse_unless(mixed_b=None)
    factor, theta = scaling.positive("factor"), config.positive("rope_theta")
    size = config.integer("hidden_size") // config.integer("num_attention_heads") or 1
    config = config.replaced(rope_theta=theta * factor)
    return config.with_section("rope_scaling", type="linear", factor=factor ** (2 / size))


FAMILY = Family(
    architectures=("GteModel", "GteForMaskedLM", "NewModel", "NewForMaskedLM"),
    read=read,
    tensors=TensorNames(
        roots=("", "gte.", "new."),
        embedding="embeddings.word_embeddings",
        type_embedding="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        end_norm="mlp_ln",
        layer="encoder.layer.{}.",
        parts={
            "attention.output": "attention.o_proj",
            "attention_norm": "mlp_ln",
            "feed_forward_norm": "attn_ln",
            "feed_forward.down": "mlp.down_proj",
        },
        stacked={"attention.qkv_proj": QUERY_KEY_VALUE, "mlp.up_gate_proj": GATE_UP[::-1]},
        derived=POOLER,
    ),
)
