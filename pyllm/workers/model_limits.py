"""Limits of a model: query heads of layers that share keys, heads of even size; and settings that layers exclude.

Imports no torch, so that the launcher can refuse a model before any process starts.
"""

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import ConfigError
from pyllm.families.spec import GatedDeltaSpec, LayerSpec, LightningSpec, ModelSpec
from pyllm.kv_transfer.connector_factory import BUILT_IN as CONNECTORS
from pyllm.workers.attention_backends import BUILT_IN


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model with heads of odd size, with different query scales, or different heads over the same keys.

    Attention backends of other packages have their own check, in the worker.

    Raises:
        ConfigError: with the feature that is not supported.
    """
    equal = ("query_scaling",) if spec.transformers is None else ("heads", "kv_heads", "head_size")
    for name in equal:
        if len({getattr(attention, name) for attention in spec.attentions} - {None}) > 1:
            raise ConfigError(f"the layers of {spec.architecture} differ in {name}, which is not supported")
    for layer in spec.layers:
        if layer.attention is not None and (source := layer.attention.kv_source) is not None:
            own, of_source = layer.attention.heads, spec.layers[source].own_attention.heads
            if own != of_source:
                raise ConfigError(
                    f"a layer of {spec.architecture} with {own} query heads reads the keys of one with {of_source}, "
                    "which is not supported"
                )
    for size in {attention.head_size for attention in spec.attentions}:
        if size % 2:
            raise ConfigError(f"attention heads of {size} dimensions are not supported: the number must be even")


def check_states(config: EngineConfig, spec: ModelSpec, device: str) -> None:
    """Refuse settings that do not know states yet, for a model whose layers keep some.

    Raises:
        ConfigError: with the setting to change.
    """
    if not spec.has_states:
        return
    name = f"{spec.architecture} has layers that keep a state, and"
    _check_attention(name, config)
    cache, transfer = config.cache, config.kv_transfer.kv_transfer_config
    if transfer is not None and (transfer.kv_connector not in CONNECTORS or transfer.kv_connector_module_path):
        raise ConfigError(
            f"{name} the KV connector {transfer.kv_connector} may move KV blocks without the states that go with them: "
            f"leave kv_transfer_config out, or choose {' or '.join(CONNECTORS)}"
        )
    for setting, is_set in (
        ("kv_transfer_config", transfer is not None),
        ("kv_cache_dir", cache.kv_cache_dir),
        ("kv_cache_redis_url", cache.kv_cache_redis_url),
    ):
        if is_set and not any(spec.attentions):
            raise ConfigError(f"{name} none with KV blocks, beside which {setting} keeps states: leave it out")
        if is_set and device != "cpu":
            raise ConfigError(f"{name} {setting} copies states of CPUs only so far: leave it out, or use --device cpu")


_NOT_OF_ENCODERS = {
    "cache": ("max_pinned_blocks", "enable_kv_cache_events", "kv_cache_dir", "kv_cache_redis_url"),
    "kv_transfer": ("kv_transfer_config",),
    "scheduler": ("long_prefill_token_threshold",),
}


def settings_of_encoder(config: EngineConfig, max_model_len: int) -> tuple[EngineConfig, list[str]]:
    """The settings for a model whose tokens attend to later ones, and the names of those that are changed for it.

    All of a text is one step, and there is no prefix cache: settings about that change no embedding, and are left out.
    """
    changed, default = [], EngineConfig()
    for part, names in _NOT_OF_ENCODERS.items():
        own, plain = getattr(config, part), getattr(default, part)
        values = {name: getattr(plain, name) for name in names}
        changed += [name for name in names if getattr(own, name) != values[name]]
        config = msgspec.structs.replace(config, **{part: msgspec.structs.replace(own, **values)})
    if 0 < config.scheduler.max_num_batched_tokens < max_model_len:
        longer = msgspec.structs.replace(config.scheduler, max_num_batched_tokens=max_model_len)
        return msgspec.structs.replace(config, scheduler=longer), [*changed, "max_num_batched_tokens"]
    return config, changed


def check_own_attention(config: EngineConfig, spec: ModelSpec) -> None:
    """Refuse settings under which layers that only pyllm's own attention computes would not run.

    Raises:
        ConfigError: with the setting to change.
    """
    heads = {(attention.heads, attention.kv_heads, attention.head_size) for attention in spec.attentions}
    found = {
        "layers of latent attention": any(attention.latent is not None for attention in spec.attentions),
        "layers of unequal heads": len(heads) > 1,
        "values narrower than keys": any(attention.value_size is not None for attention in spec.attentions),
        "tokens that attend to later ones": spec.is_bidirectional,
        "layers that share keys and values": any(attention.kv_source is not None for attention in spec.attentions),
    }
    for name, is_there in found.items():
        if is_there and spec.transformers is None:
            _check_attention(f"{spec.architecture} has {name}, and", config)


def check_cpu_layers(config: EngineConfig, spec: ModelSpec, device: str) -> None:
    """Refuse settings under which layers that only pyllm's kernels for CPUs compute would not run.

    Raises:
        ConfigError: with the setting to change.
    """
    if any(map(is_for_cpus_alone, spec.layers)):
        name = "lightning attention, delta rules with bounded decays or shares up to 2, an index of tokens"
        _check_backends(f"{spec.architecture} has layers of {name}, or a relative position bias, and", config, device)


def is_for_cpus_alone(layer: LayerSpec) -> bool:
    """Whether a layer's recurrence, its choice of tokens or its relative position bias has no kernels in Triton."""
    recurrence, attention = layer.recurrence, layer.attention
    if attention is not None and (attention.index is not None or attention.relative_bias is not None):
        return True
    if isinstance(recurrence, GatedDeltaSpec):
        return recurrence.greatest_share != 1 or recurrence.strongest_decay is not None
    return isinstance(recurrence, LightningSpec)


def _check_backends(name: str, config: EngineConfig, device: str) -> None:
    if device != "cpu":
        raise ConfigError(f"{name} these run on CPUs only so far: use --device cpu")
    if config.device.kernel_backend not in {"auto", "cpu", "reference"}:
        raise ConfigError(f"{name} kernel_backend {config.device.kernel_backend} has none of them: leave it out")
    _check_attention(name, config)


def _check_attention(name: str, config: EngineConfig) -> None:
    if config.device.attention_backend not in BUILT_IN:
        raise ConfigError(f"{name} attention_backend {config.device.attention_backend} has none of them: leave it out")
    if config.sparse.sparse_attention:
        raise ConfigError(f"{name} sparse_attention {config.sparse.sparse_attention} does not know these: leave it out")
