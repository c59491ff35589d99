"""The model class of each architecture. A new family is a file beside `llama.py` and a line here."""

from pyllm.checkpoint.types import Architecture
from pyllm.errors import ConfigError
from pyllm.workers.layers.placement import Placement
from pyllm.workers.models.llama import LlamaForCausalLM

_MODELS = {"LlamaForCausalLM": LlamaForCausalLM}


def build_model(architecture: Architecture, placement: Placement) -> LlamaForCausalLM:
    """Build the model with room for this rank's weights; `load` fills it.

    Raises:
        ConfigError: no module here knows the architecture.
    """
    if architecture.architecture not in _MODELS:
        known = ", ".join(sorted(_MODELS))
        raise ConfigError(f"architecture {architecture.architecture!r} is not supported; supported: {known}")
    return _MODELS[architecture.architecture](architecture, placement)
