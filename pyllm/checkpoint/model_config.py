"""Reads a config.json in the form for families and transformers: one spelling per setting, overrides applied.

Knows no family's fields and no tensor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyllm.checkpoint.json_files import read_json
from pyllm.families.registry import spelled_architecture

_ROPE = ("rope_parameters", "rope_scaling")
# Base and rotated share of RoPE, before any scaling; they stand in a RoPE section or beside it.
_ROPE_BASE = ("rope_theta", "partial_rotary_factor")
_FULL = "full_attention"
# Alternative names of one setting; readers take the first that is present.
_SPELLINGS = (("num_local_experts", "num_experts"), ("quantization_config", "compression_config"))

Fields = dict[str, Any]


class ModelFields(NamedTuple):
    """The fields of a config.json; `has_head` is false for a class such as LlamaModel, which gives embeddings only.

    `is_classifier`: the class gives each of some classes a score, as rerankers do.
    """

    fields: Fields
    has_head: bool
    is_classifier: bool = False


def read_model_config(folder: Path, overrides: Mapping[str, Any] | None = None) -> ModelFields:
    """The fields of a folder's config.json, some of them replaced by `overrides`.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    fields = read_json(folder / "config.json", dict[str, Any])
    if isinstance(language_model := fields.get("llm_config"), dict):  # in InternVL's own code
        fields = {"text_config": language_model} | fields
    fields = _with_one_rope(_overridden(fields, dict(overrides)) if overrides else fields)
    if isinstance(text := fields.get("text_config"), dict):
        fields["text_config"] = _with_one_rope(text)
    return _with_architecture(fields)


def _overridden(fields: Fields, overrides: Fields) -> Fields:
    """The fields with overrides, which also replace other spellings of their settings, here and in `text_config`."""
    text, rope = fields.get("text_config"), overrides.get("rope_parameters")
    if isinstance(text, dict) and isinstance(overrides.get("text_config", {}), dict):
        of_rope = {name: overrides[name] for name in (*_ROPE, *_ROPE_BASE) if name in overrides}
        overrides = overrides | {"text_config": _overridden(text, of_rope | overrides.get("text_config", {}))}
    replaced = {name for names in _SPELLINGS if overrides.keys() & set(names) for name in names}
    if isinstance(rope, dict):
        replaced.add("rope_scaling")
        if isinstance(own := fields.get("rope_parameters"), dict) and _FULL not in rope:
            overrides = overrides | {"rope_parameters": _base_of(own, fields | overrides) | rope}
    kept = {name: value for name, value in fields.items() if name not in replaced}
    for name in _ROPE:
        if isinstance(own := kept.get(name), dict):
            base = overrides.keys() & set(_ROPE_BASE)
            kept[name] = {key: value for key, value in own.items() if key not in base}
    return kept | overrides


def _with_one_rope(fields: Fields) -> Fields:
    """Merge `rope_scaling`, which wins, into `rope_parameters`, as in transformers: recipes for longer contexts add it.

    The base of `rope_parameters` stays; transformers falls back to the default of its class, which no such recipe
    means. Where each type of layers has its own parameters, `rope_scaling` applies to full attention only.
    """
    newer, older = (fields.get(name) for name in _ROPE)
    if not isinstance(newer, dict) or not isinstance(older, dict) or not newer or not older:
        return fields
    if "type" in older:
        older = {"rope_type": older["type"]} | older
    if isinstance(newer.get(_FULL), dict):
        merged = newer | {_FULL: newer[_FULL] | older}
    else:
        merged = _base_of(newer, fields) | older
    return {name: value for name, value in fields.items() if name != "rope_scaling"} | {"rope_parameters": merged}


def _base_of(rope: Fields, fields: Fields) -> Fields:
    """Base and rotated share in a RoPE section, without those that `fields` has beside the section."""
    return {name: rope[name] for name in _ROPE_BASE if name in rope and fields.get(name) is None}


def _with_architecture(fields: Fields) -> ModelFields:
    """The fields with the architecture in the families' spelling; if it is missing, derived from `model_type`."""
    found = fields.get("architectures") or None
    fields = fields | {"architectures": [found] if isinstance(found, str) else found}
    named = fields["architectures"] or [""]
    if not isinstance(named, list) or not isinstance(named[0], str):
        return ModelFields(fields, has_head=True)
    model_type = fields.get("model_type")
    spelled = spelled_architecture(named[0] or (model_type if isinstance(model_type, str) else ""))
    fields = fields | {"architectures": [spelled]} if spelled else fields
    is_bare = named[0].endswith("Model") and not named[0].endswith("ChatModel")
    is_classifier = named[0].endswith("ForSequenceClassification")
    return ModelFields(fields, "LMHead" in named[0] or not (is_bare or is_classifier), is_classifier)
