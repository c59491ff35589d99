from .control_groups import cpu_quota, free_processes, read_file
from .cpu_features import instructions, parse
from .cuda_driver import VisibleCard, driver_version, visible_cards
from .memory_check import (
    activation_bytes,
    check_memory,
    default_kv_cache_bytes,
    kv_bytes,
    kv_bytes_per_token,
    memory_needed,
    table_bytes_per_token,
    weights_bytes,
)
from .model_overrides import chat_template_notice, check_overrides
from .probe_process import probe_model
from .resolve import cpu_memory_needed, resolve_config, resolve_server, resolve_settings, shared_config

__all__ = [
    "VisibleCard",
    "activation_bytes",
    "chat_template_notice",
    "check_memory",
    "check_overrides",
    "cpu_memory_needed",
    "cpu_quota",
    "default_kv_cache_bytes",
    "driver_version",
    "free_processes",
    "instructions",
    "kv_bytes",
    "kv_bytes_per_token",
    "memory_needed",
    "parse",
    "probe_model",
    "read_file",
    "resolve_config",
    "resolve_server",
    "resolve_settings",
    "shared_config",
    "table_bytes_per_token",
    "visible_cards",
    "weights_bytes",
]
