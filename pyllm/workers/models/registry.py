"""Which class builds which architecture. A new family is a file beside `llama.py` and a line here."""

from pyllm.checkpoint import Architecture
from pyllm.errors import ConfigError
from pyllm.workers.models.llama import LlamaForCausalLM
from pyllm.workers.placement import Placement

_MODELS = {"LlamaForCausalLM": LlamaForCausalLM}


def build_model(architecture: Architecture, placement: Placement) -> LlamaForCausalLM:
    """The model with room for this rank's weights, not loaded yet.

    Raises:
        ConfigError: no module here knows the architecture.
    """
    if architecture.architecture not in _MODELS:
        known = ", ".join(sorted(_MODELS))
        raise ConfigError(f"architecture {architecture.architecture!r} is not supported; supported: {known}")
    return _MODELS[architecture.architecture](architecture, placement)
