from .api_keys import Allowance, ApiKey, KeyRing, Role, flag_keys, new_key, read_api_keys
from .engine_settings import (
    DEFAULT_CPU_KV_CACHE_BYTES,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    KVCacheDtype,
    KVEventsConfig,
    LogConfig,
    ParallelConfig,
    RecoveryConfig,
    SchedulerConfig,
    is_rust,
)
from .model_settings import Dtype, ModelConfig, Quantization
from .option_fields import ConfigPart, Option, TextForm, options_of
from .option_reading import SECRETS, config_part, engine_config, option_names
from .option_texts import parse_count, parse_size
from .process_config import ApiConfig, CoreConfig, ForkServerConfig, SharedConfig, StateConfig, WorkerConfig
from .server_settings import RESERVED_TEMPLATE_VARIABLES, HeadlessConfig, ServerConfig, UnknownFields
from .tls import tls_context
from .vllm_flags import GROUPS, VLLM_FLAGS, VllmFlag, explain_flag

__all__ = [
    "DEFAULT_CPU_KV_CACHE_BYTES",
    "GROUPS",
    "RESERVED_TEMPLATE_VARIABLES",
    "SECRETS",
    "VLLM_FLAGS",
    "Allowance",
    "ApiConfig",
    "ApiKey",
    "CacheConfig",
    "ConfigPart",
    "CoreConfig",
    "DeviceConfig",
    "Dtype",
    "EngineConfig",
    "ForkServerConfig",
    "HeadlessConfig",
    "KVCacheDtype",
    "KVEventsConfig",
    "KeyRing",
    "LogConfig",
    "ModelConfig",
    "Option",
    "ParallelConfig",
    "Quantization",
    "RecoveryConfig",
    "Role",
    "SchedulerConfig",
    "ServerConfig",
    "SharedConfig",
    "StateConfig",
    "TextForm",
    "UnknownFields",
    "VllmFlag",
    "WorkerConfig",
    "config_part",
    "engine_config",
    "explain_flag",
    "flag_keys",
    "is_rust",
    "new_key",
    "option_names",
    "options_of",
    "parse_count",
    "parse_size",
    "read_api_keys",
    "tls_context",
]
