"""nanochat: norms without weights, of the embedding, too; a squared rectifier; RoPE in the other sense."""

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import Family, num_layers, read_attention, read_feed_forward, read_model, read_norm
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of nanochat describes."""
    config = config.with_defaults(hidden_act="relu2", final_logit_softcapping=15.0)
    bias, norm = config.flag("attention_bias", False), read_norm(config, weight=False)
    # It normalises query and key after the rotation, which changes no root mean square.
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm)
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, gated=False),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    rope = read_rope(config, attention.head_size)
    return read_model(
        config,
        [layer] * num_layers(config),
        [replace(rope, inverse_frequencies=tuple(-frequency for frequency in rope.inverse_frequencies))],
        embedding_norm=norm,
        logit_soft_cap=config.optional_positive("final_logit_softcapping"),
    )


FAMILY = Family(
    architectures=("NanoChatForCausalLM",),
    read=read,
    tensors=TensorNames(parts=LLAMA_PARTS | {"feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"}),
)
