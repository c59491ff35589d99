"""The settings and models that sparse attention does not support. Imports no torch, as the launcher uses it.

Knows selectors by name only.
"""

from pyllm.config.engine_settings import EngineConfig, SparseAttentionConfig
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from pyllm.workers.sparse_attention.kv_selectors import find_kv_selector


def check_sparse_attention(config: EngineConfig, spec: ModelSpec, device: str) -> None:
    """Refuse sparse attention where it is not supported, and settings that have no effect without it.

    Raises:
        ConfigError: with the setting to change.
    """
    name, settings = config.sparse.sparse_attention, config.sparse
    if not name:
        if settings != SparseAttentionConfig():
            raise ConfigError("sparse_attention_... needs sparse_attention: set it, too, for example to quest")
        return
    find_kv_selector(name)
    if device != "cpu":
        raise ConfigError(
            f"sparse_attention {name} works on CPUs only, not on {device}: leave it out, or set device to cpu"
        )
    for setting in ("attention_backend", "kernel_backend"):
        backend = getattr(config.device, setting)
        if backend not in {"auto", "cpu", "sdpa", "reference"}:
            raise ConfigError(
                f"sparse_attention {name} does not work with {setting} {backend}, which plans what it reads before a "
                "layer has chosen: leave one of them out"
            )
    if spec.transformers is not None:
        raise ConfigError(
            f"sparse_attention {name} is not possible where transformers computes the model: leave it out, or use "
            "--model-impl native"
        )
    if any(attention.slopes is not None for attention in spec.attentions):
        raise ConfigError(
            f"sparse_attention {name} is not possible with ALiBi, which needs the distance of positions: leave it out"
        )
    first = settings.sparse_attention_dense_layers
    if all(layer.attention is None or layer.attention.window is not None for layer in spec.layers[first:]):
        raise ConfigError(
            f"sparse_attention {name} has nothing to choose: of {len(spec.layers)} layers the first {first} read all "
            "blocks (sparse_attention_dense_layers), and the others have a window"
        )
