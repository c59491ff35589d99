"""Sampling defaults and end tokens in a model's files: generation_config.json, or a GGUF file. Opens no file.

https://huggingface.co/docs/transformers/main_classes/text_generation and llama.cpp's `general.sampling.*`
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.config import Config

# Fields of the two formats, by the parameter of a request that each is a default of.
JSON_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
}
GGUF_FIELDS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_END = "eos_token_id"


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling defaults of a model; None: the default of `SamplingParams` applies."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def given(self) -> dict[str, Any]:
        """The defaults that are not None, as keywords of `SamplingParams`."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def merged(self, given: Mapping[str, Any], max_tokens: int | None) -> dict[str, Any]:
        """The keywords of a request, with these defaults for the missing ones. `max_tokens` is an upper bound."""
        limits = [limit for limit in (max_tokens, self.max_tokens) if limit is not None]
        return {**self.given(), **given, "max_tokens": min(limits, default=None)}


def sampling_defaults(config: Config, names: Mapping[str, str] = JSON_FIELDS) -> SamplingDefaults:
    """The defaults in `config`; `names` maps each default to its field.

    Raises:
        ConfigError: one is no number. `launch/model_overrides.py` checks the ranges.
    """
    found: dict[str, Any] = {}
    for name, field in names.items():
        if field not in config:
            continue
        if name in {"top_k", "max_tokens"}:
            found[name] = config.integer(field, least=-1)
        else:
            found[name] = float(f"{config.number(field):.7g}")  # GGUF has float32: 0.2, not 0.20000000298.
    return SamplingDefaults(**found)


def end_token_ids(config: Config) -> tuple[int, ...] | None:
    """The token ids of `eos_token_id`; None where the field is absent, an empty tuple where it is null.

    Raises:
        ConfigError: the field is neither a whole number nor a list of them.
    """
    if _END not in config:
        return () if _END in config.nulls else None
    try:
        return tuple(config.integers(_END))
    except ConfigError:
        return (config.integer(_END, least=-1),)


def parse_overrides(fields: Mapping[str, Any], place: str) -> SamplingDefaults:
    """Defaults that a user gives, under the names of generation_config.json; `place` names their source in errors.

    Raises:
        ConfigError: a name is unknown, or a value is no number.
    """
    if unknown := sorted(fields.keys() - JSON_FIELDS.values()):
        raise ConfigError(f"{place}: {', '.join(unknown)} unknown, only {', '.join(JSON_FIELDS.values())}")
    return sampling_defaults(Config(fields, place))
