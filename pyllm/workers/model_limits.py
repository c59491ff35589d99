"""Limits of a model that hold for every kernel backend: equal heads in all layers, heads of even size.

Imports no torch, so that the launcher can refuse a model before any process starts.
"""

from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model with heads of odd size, or whose layers have different heads or query scales.

    Attention backends of other packages have their own check, in the worker.

    Raises:
        ConfigError: with the feature that is not supported.
    """
    for name in ("heads", "kv_heads", "head_size", "query_scaling"):
        if len({getattr(layer.attention, name) for layer in spec.layers}) > 1:
            raise ConfigError(f"the layers of {spec.architecture} differ in {name}, which is not supported")
    size = spec.attention.head_size
    if size % 2:
        raise ConfigError(f"attention heads of {size} dimensions are not supported: the number must be even")
