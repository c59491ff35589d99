"""The text model within a model for images or sounds, too. Knows defaults of transformers' classes, and no family."""

from typing import Any

from pyllm.families.config import Config
from pyllm.families.registry import spelled_architecture

_GENERATORS = ("ForConditionalGeneration", "ChatModel")  # others classify, embed, or draft for another model
# Their prompts attend to later tokens, too (PaliGemma, arXiv 2407.07726).
_BOTH_WAYS = frozenset({"PaliGemmaForConditionalGeneration", "PI0ForConditionalGeneration"})
# Defaults of transformers' classes, which files of models for images leave out: LLaVA's have little beside them.
_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_QWEN2_VL = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"intermediate_size": 11_008, "max_position_embeddings": 2048, "vocab_size": 32_000},
    "mistral": _SIZES | {"intermediate_size": 14_336, "max_position_embeddings": 131_072, "vocab_size": 32_000},
    "qwen2": _SIZES
    | {"intermediate_size": 22_016, "max_position_embeddings": 32_768, "vocab_size": 151_936}
    | {"num_key_value_heads": 32},
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": {"rope_theta": 500_000.0},
    "qwen3_vl_moe_text": {"rope_theta": 500_000.0},
    "glm4v_text": {"rms_norm_eps": 1e-5},
    "glm4v_moe_text": {"attention_bias": True},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
    },
}


def text_model(config: Config) -> Config:
    """The configuration of the text model in a config.json: of its `text_config`, or all of it if there is none.

    Its architecture is the section's own if a family has it, and otherwise that of the whole model.
    """
    section = config.section("text_config")
    is_beside = "hidden_size" in config and "hidden_size" not in section  # a model's own fields
    if not len(section) or is_beside or "architectures" not in config:
        return config
    whole = str(config.items("architectures", 1)[0])
    named = [section.text("model_type", ""), *section.texts("architectures")[:1], whole]
    if whole.endswith("ForCausalLM"):  # also what a user gives
        named.insert(0, whole)
    architecture = next(filter(None, map(spelled_architecture, named)), None)
    generates = whole.endswith(_GENERATORS) and whole not in _BOTH_WAYS
    if architecture is None or not (generates or spelled_architecture(whole)):
        return config
    # Earlier files have it inside, beside an outer one that was never set.
    ties = [place.flag("tie_word_embeddings") for place in (config, section) if "tie_word_embeddings" in place]
    section = section.with_defaults(**_DEFAULTS.get(section.text("model_type", ""), {}))
    return section.replaced(architectures=[architecture], **({"tie_word_embeddings": any(ties)} if ties else {}))
