"""The text model within a model for images or sounds, too. Knows no family's fields."""

from typing import Any

from pyllm.families.config import Config
from pyllm.families.registry import spelled_architecture

_SECTIONS = ("text_config", "llm_config")  # the latter of InternVL's own code
_GENERATORS = ("ForConditionalGeneration", "ChatModel")  # others classify, embed, or draft for another model
# Their prompts attend to later tokens, too (PaliGemma, arXiv 2407.07726).
_BOTH_WAYS = frozenset({"PaliGemmaForConditionalGeneration", "PI0ForConditionalGeneration"})
# Defaults of transformers' classes, which files of models for images leave out: LLaVA's have little beside them.
_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"intermediate_size": 11_008, "max_position_embeddings": 2048, "vocab_size": 32_000},
    "mistral": _SIZES | {"intermediate_size": 14_336, "max_position_embeddings": 131_072, "vocab_size": 32_000},
    "qwen2": _SIZES
    | {"intermediate_size": 22_016, "max_position_embeddings": 32_768, "vocab_size": 151_936}
    | {"num_key_value_heads": 32},
}


def text_model(config: Config) -> Config:
    """The configuration of the text model in a config.json: of its section, or all of it if there is none.

    Its architecture is the section's own if a family has it, and otherwise that of the whole model.
    """
    section = next((config.section(name) for name in _SECTIONS if name in config), None)
    is_beside = section is not None and "hidden_size" in config and "hidden_size" not in section  # a model's own fields
    if section is None or is_beside or "architectures" not in config:
        return config
    whole = str(config.items("architectures", 1)[0])
    named = (section.text("model_type", ""), *section.texts("architectures")[:1], whole)
    architecture = next(filter(None, map(spelled_architecture, named)), None)
    generates = whole.endswith(_GENERATORS) and whole not in _BOTH_WAYS
    if architecture is None or not (generates or spelled_architecture(whole)):
        return config
    ties = {"tie_word_embeddings": config.value("tie_word_embeddings")} if "tie_word_embeddings" in config else {}
    defaults = _DEFAULTS.get(section.text("model_type", ""), {})
    return section.with_defaults(**defaults).replaced(architectures=[architecture], **ties)
