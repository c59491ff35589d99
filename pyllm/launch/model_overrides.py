"""Applies the user's chat template and sampling defaults to a checkpoint. Reads no weights."""

import logging
from pathlib import Path

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults, parse_overrides
from pyllm.checkpoint.huggingface import read_generation_config
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.model_settings import ModelConfig
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.templates import ChatTemplate, no_chat_template
from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def with_overrides(checkpoint: Checkpoint, config: ModelConfig) -> Checkpoint:
    """The checkpoint with the chat template, sampling defaults and end tokens that the user chose.

    Raises:
        ConfigError: a file cannot be read, or a default is out of its range.
    """
    tokenizer = checkpoint.tokenizer
    if config.chat_template:
        template = _chat_template(config.chat_template)
        tokenizer = msgspec.structs.replace(tokenizer, chat_template=template, tool_chat_template=None)
    sampling, ends = _sampling_and_ends(checkpoint.sampling, config)
    if ends is not None:
        tokenizer = tokenizer.with_ends(ends, checkpoint.spec)
    return msgspec.structs.replace(checkpoint, tokenizer=tokenizer, sampling=sampling)


def check_overrides(config: ModelConfig) -> None:
    """Raise `ConfigError` where the overrides are invalid for every model."""
    if config.chat_template:
        ChatTemplate(_chat_template(config.chat_template), "", "")
    _sampling_and_ends(SamplingDefaults(), config)


def chat_template_notice(checkpoint: Checkpoint) -> str:
    """The warning that a model cannot chat; empty where it can, and for a model that only embeds.

    Raises:
        ConfigError: its chat template does not compile.
    """
    if ChatTemplate.of(checkpoint.tokenizer) is not None or checkpoint.embedding.is_only_use:
        return ""
    return no_chat_template(checkpoint.name)


def _chat_template(given: str) -> str:
    """The chat template: `given` itself if it has a brace, else the content of the file that it names."""
    path = Path(given).expanduser()
    try:
        if "{" not in given:
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the chat template {path}: {error}") from None
    return given


def _sampling_and_ends(own: SamplingDefaults, config: ModelConfig) -> tuple[SamplingDefaults, tuple[int, ...] | None]:
    """Sampling defaults by vLLM's rules: `auto` takes the model's, `vllm` none; then overrides replace single ones.

    The end tokens are those of another generation_config.json that the user names, else None.
    """
    ends = None
    if config.generation_config == "vllm":
        own = SamplingDefaults()
    elif config.generation_config != "auto":
        own, ends = read_generation_config(Path(config.generation_config).expanduser())
    overrides = parse_overrides(config.override_generation_config, "override_generation_config")
    chosen = msgspec.structs.replace(own, **overrides.given())
    try:
        SamplingParams(**chosen.given())
        check("max_tokens", chosen.max_tokens, chosen.max_tokens != 0, "at least 1")
    except RequestError as error:
        raise ConfigError(
            f"a sampling default cannot be used: {error}; change it by --override-generation-config, or take none of "
            "the model's by --generation-config vllm"
        ) from None
    if values := chosen.given():
        listed = ", ".join(f"{name} {value:g}" for name, value in values.items())
        logger.info("requests that leave sampling out get %s (--generation-config)", listed)
    return chosen, ends
