"""Builds a model of transformers from a config.json, without weights, for our attention."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend import attention


def build(config: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """The causal language model that the text of a config.json describes. Its parameters are uninitialised.

    On a CPU uninitialised memory takes none, until it is written to; buffers have their values. On "meta" nothing has.

    Raises:
        ConfigError: transformers has no such model, or its code is not part of transformers.
    """
    fields = json.loads(config)
    name = fields["architectures"][0]
    kind = getattr(transformers, name, None)
    if kind is None or kind not in set(MODEL_FOR_CAUSAL_LM_MAPPING.values()):
        known = "needs code of its own, which is not run" if "auto_map" in fields else "is none of its"
        raise ConfigError(f"transformers {transformers.__version__} has no {name}: it {known} causal language models")
    with _quiet(), no_init_weights(), torch.device(device):
        read: PretrainedConfig = kind.config_class.from_dict(_without_quantization(fields))
        return cast(PreTrainedModel, kind._from_config(read, dtype=dtype, attn_implementation=attention.NAME)).eval()


def called_modules(model: nn.Module, path: str) -> nn.Module:
    """The module at a path; the model itself at an empty one."""
    return model.get_submodule(path) if path else model


def _without_quantization(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "quantization_config"}


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns of what a server's operator cannot change."""
    logger = logging.getLogger("transformers")
    before, logger.level = logger.level, logging.ERROR
    try:
        yield
    finally:
        logger.level = before
