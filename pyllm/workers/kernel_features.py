"""Which features of a model each kernel backend computes.

Imports no torch, so that the launcher can refuse a model before any process starts.
"""

from collections.abc import Set

from pyllm.config.options import DeviceConfig
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from pyllm.workers.attention_backends import BUILT_IN

_COMMON = {
    "window": "attention over a window",
    "soft_cap": "a soft cap of attention scores",
    "query_key_norm": "norms of query and key",
    "query_scaling": "a query scale by position",
    "sinks": "attention sinks",
    "routing": "experts",
}
_ON_CPUS = {
    "has_biased_experts": "biases of experts",
    "clamped_gate": "a clamped gate",
}
# A backend's ops all compute the common features.
COMPUTED: dict[str, frozenset[str]] = {
    "cpu": frozenset(_COMMON | _ON_CPUS),
    "reference": frozenset(_COMMON | _ON_CPUS),
    "triton": frozenset(_COMMON),
}


def features(spec: ModelSpec) -> dict[str, str]:
    """What a model needs beyond plain attention: the name of each feature, and its description."""
    known = _COMMON | _ON_CPUS
    parts = [part for layer in spec.layers for part in (layer.attention, layer.feed_forward)]
    return {name: text for name, text in known.items() if any(getattr(part, name, None) for part in parts)}


def supports(backend: str, spec: ModelSpec) -> bool:
    """Whether the kernels of a backend (cpu, triton, reference) compute a model."""
    return features(spec).keys() <= COMPUTED[backend]


def check_supported(spec: ModelSpec, config: DeviceConfig, device: str, dtypes: Set[str]) -> None:
    """Refuse a model that the kernels of this device cannot compute, or whose layers differ in what they must share.

    Another package's attention backend answers for itself, in the worker.

    Raises:
        ConfigError: with the names of the features that are missing.
    """
    for backend in _backends(config, device, dtypes):
        if not supports(backend, spec):
            missing = [text for name, text in features(spec).items() if name not in COMPUTED[backend]]
            raise ConfigError(
                f"the {backend} kernels do not compute {', '.join(missing)}, which {spec.architecture} needs"
            )
    for name in ("heads", "kv_heads", "head_size", "query_scaling"):
        if len({getattr(layer.attention, name) for layer in spec.layers}) > 1:
            raise ConfigError(f"the layers of {spec.architecture} differ in {name}, which is not supported")
    size = spec.attention.head_size
    if size % 2:
        raise ConfigError(f"attention heads of {size} dimensions are not supported: the number must be even")


def _backends(config: DeviceConfig, device: str, dtypes: Set[str]) -> set[str]:
    """The backends of our own that compute the model: that of its attention, and that of all else."""
    automatic = "triton" if device == "cuda" else "reference" if "float16" in dtypes else "cpu"
    kernels = automatic if config.kernel_backend == "auto" else config.kernel_backend
    attention = BUILT_IN.get(config.attention_backend, "auto")
    return {kernels, kernels if attention == "auto" else attention}
