"""Builds a model of transformers from a config.json, without weights, for our attention."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils.logging import disable_progress_bar

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.attention_interface import NAME


def build(config: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """The causal language model that the text of a config.json describes. Its parameters are uninitialised.

    On a CPU uninitialised memory takes none, until it is written to; buffers have their values. On "meta" nothing has.

    Raises:
        ConfigError: transformers has no such model, or its code is not part of transformers.
    """
    fields = json.loads(config)
    name = fields["architectures"][0]
    kind = getattr(transformers, name, None)
    is_known = fields.get("model_type") in CONFIG_MAPPING and kind in set(MODEL_FOR_CAUSAL_LM_MAPPING.values())
    if kind is None or not is_known:
        known = "needs code of its own, which is not run" if "auto_map" in fields else "is none of its"
        raise ConfigError(f"transformers {transformers.__version__} has no {name}: it {known} causal language models")
    with _quiet(), no_init_weights(), torch.device(device):
        read = _read(CONFIG_MAPPING[fields["model_type"]], fields)
        if kind.config_class is read.sub_configs.get("text_config"):
            read = read.get_text_config()
        model: PreTrainedModel = kind._from_config(read, dtype=dtype, attn_implementation=NAME)
    model.train(False)
    return model


def _read(kind: type[PretrainedConfig], fields: dict[str, Any]) -> PretrainedConfig:
    """From a file, as a config.json may have what only its reader understands, such as infinities."""
    fields = {name: field for name, field in fields.items() if name != "quantization_config"}  # ours to read
    with TemporaryDirectory(prefix="pyllm-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        return kind.from_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns of what a server's operator cannot change."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(before)
