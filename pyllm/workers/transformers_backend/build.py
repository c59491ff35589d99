"""Builds a transformers model from a config.json, without weights, with pyllm's attention."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.attention_interface import NAME


def build(config: str, dtype: torch.dtype, device: str, most_layers: int | None = None) -> PreTrainedModel:
    """The causal language model that the text of a config.json describes. Its parameters are uninitialised.

    On a CPU uninitialised parameters take no memory until they are written; buffers have their values. On "meta"
    neither has values.

    Raises:
        ConfigError: transformers has no such model, its code is not part of transformers, or it has more layers than
            `most_layers`.
    """
    fields = json.loads(config)
    name, model_type = architecture_of(fields), fields.get("model_type")
    if model_type not in CONFIG_MAPPING or name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        reason = "a newer version may have it"
        if "auto_map" in fields:
            reason = "it comes with code of its own, which is not run"
        elif hasattr(transformers, name):
            reason = "that class of it computes no next tokens"
        version = transformers.__version__
        raise ConfigError(f"transformers {version} has no causal language model {name} of type {model_type}: {reason}")
    kind = getattr(transformers, name)
    with quiet(), no_init_weights(), torch.device(device):
        read = _read(CONFIG_MAPPING[model_type], fields)
        if kind.config_class is read.sub_configs.get("text_config"):
            read = read.get_text_config()
        read.return_dict = True
        num_layers = getattr(read.get_text_config(decoder=True), "num_hidden_layers", 0)
        if most_layers is not None and num_layers > most_layers:
            raise ConfigError(f"config.json has {num_layers} layers, and the files have {most_layers} tensors")
        model: PreTrainedModel = kind._from_config(read, dtype=dtype, attn_implementation=NAME)
    model.train(False)
    return model


def architecture_of(fields: dict[str, Any]) -> str:
    """The class that a config.json names, or else the class for its model_type."""
    names = fields.get("architectures") or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(fields.get("model_type")), "")]
    return str(names[0])


def _read(kind: type[PretrainedConfig], fields: dict[str, Any]) -> PretrainedConfig:
    """Read the configuration from a file, as only this reader understands values such as infinities."""
    # pyllm reads the first itself, and the second may name a missing file.
    fields = {
        name: field for name, field in fields.items() if name not in {"quantization_config", "configuration_files"}
    }
    with TemporaryDirectory(prefix="pyllm-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        return kind.from_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings about settings that a server's operator cannot change, and progress bars in its log."""
    logger = logging.getLogger("transformers")
    before, has_bar = logger.level, is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(before)
        if has_bar:
            enable_progress_bar()
