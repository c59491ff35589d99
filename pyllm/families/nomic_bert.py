"""NomicBERT (arXiv 2402.01613): BERT with rotations, gated feed-forward layers, and no biases but those of norms.

With experts (arXiv 2502.07972) it has biases, and no gates; every other layer has experts, without biases.
"""

from dataclasses import replace

from pyllm.families.bert import GGUF_ENCODER_FIELDS, GGUF_ENCODER_NAMES, POOLER, read_encoder
from pyllm.families.config import Config
from pyllm.families.family import GGUF_EXPERTS, Family, GgufNames, read_routing, with_experts
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_names import QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of transformers, of the published files or of a GGUF file describes."""
    every = config.integer("moe_every_n_layers", 0, least=0)
    has_experts = every > 0
    config.refuse_unless(
        activation_function="gelu" if has_experts else "swiglu",
        prenorm=False,
        parallel_block=False,
        use_rms_norm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        qkv_proj_bias=has_experts,
        mlp_fc1_bias=has_experts,
        mlp_fc2_bias=has_experts,
        moe_normalize_expert_weights=False,
        expert_choice_router=False,
        num_shared_experts=0,
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
    if not has_experts:
        return read_encoder(config, bias=False, gated=True)
    config = config.renamed(num_experts_per_tok="moe_top_k").replaced(hidden_act="gelu")
    spec, routing = read_encoder(config, bias=True), read_routing(config, normalised=False)
    size = config.integer("intermediate_size")
    return with_experts(spec, routing, size, lambda index: index % every == 1, bias=False)


_EXPERTS = {
    "feed_forward.experts.up": "mlp.experts.mlp.w1",
    "feed_forward.experts.down": "mlp.experts.mlp.w2",
}

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
            "feed_forward.router": "mlp.router.layer",
        }
        | _EXPERTS,
        aliases={"mlp.fc11": "mlp.fc1"},
        stacked={"attn.Wqkv": QUERY_KEY_VALUE},
        bare=frozenset(_EXPERTS.values()),
        transposed=frozenset({"feed_forward.experts.down"}),
        derived=(*POOLER, ".mlp.experts.bias"),  # llama.cpp leaves it out, too.
    ),
    gguf=GgufNames(
        architectures=("nomic-bert", "nomic-bert-moe"),
        tensors=replace(GGUF_ENCODER_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE}),
        fields=GGUF_ENCODER_FIELDS | GGUF_EXPERTS | {"moe_every_n_layers": "moe_every_n_layers"},
    ),
)
