from .api_keys import Allowance, ApiKey, KeyRing, Role, check_accounts, flag_keys, new_key, read_api_keys
from .credentials import Credentials, read_credentials
from .engine_settings import (
    MAX_CORES,
    MIN_CPU_KV_CACHE_BYTES,
    CacheConfig,
    CorePlacement,
    DeviceConfig,
    EngineConfig,
    KVCacheDtype,
    KVEventsConfig,
    LogConfig,
    ParallelConfig,
    RecoveryConfig,
    SchedulerConfig,
    SparseAttentionConfig,
    is_rust,
)
from .kv_transfer_settings import KVTransferConfig
from .model_settings import Dtype, ModelConfig, Quantization
from .option_fields import ConfigPart, Option, TextForm, options_of
from .option_reading import SECRETS, config_part, engine_config, option_names
from .option_texts import parse_count, parse_size
from .peer_flags import explain_peer_flag
from .process_config import ApiConfig, CoreConfig, ForkServerConfig, SharedConfig, StateConfig, WorkerConfig
from .rank_coordinates import RankCoordinates, coordinates_of, num_ranks, ranks_of_stage, sampling_rank
from .server_settings import RESERVED_TEMPLATE_VARIABLES, HeadlessConfig, ServerConfig, UnknownFields
from .server_trust import DEFAULT_TRUST, ServerTrust, connection_advice
from .tls import tls_context
from .vllm_flags import GROUPS, VLLM_FLAGS, VllmFlag, explain_flag

__all__ = [
    "DEFAULT_TRUST",
    "GROUPS",
    "MAX_CORES",
    "MIN_CPU_KV_CACHE_BYTES",
    "RESERVED_TEMPLATE_VARIABLES",
    "SECRETS",
    "VLLM_FLAGS",
    "Allowance",
    "ApiConfig",
    "ApiKey",
    "CacheConfig",
    "ConfigPart",
    "CoreConfig",
    "CorePlacement",
    "Credentials",
    "DeviceConfig",
    "Dtype",
    "EngineConfig",
    "ForkServerConfig",
    "HeadlessConfig",
    "KVCacheDtype",
    "KVEventsConfig",
    "KVTransferConfig",
    "KeyRing",
    "LogConfig",
    "ModelConfig",
    "Option",
    "ParallelConfig",
    "Quantization",
    "RankCoordinates",
    "RecoveryConfig",
    "Role",
    "SchedulerConfig",
    "ServerConfig",
    "ServerTrust",
    "SharedConfig",
    "SparseAttentionConfig",
    "StateConfig",
    "TextForm",
    "UnknownFields",
    "VllmFlag",
    "WorkerConfig",
    "check_accounts",
    "config_part",
    "connection_advice",
    "coordinates_of",
    "engine_config",
    "explain_flag",
    "explain_peer_flag",
    "flag_keys",
    "is_rust",
    "new_key",
    "num_ranks",
    "option_names",
    "options_of",
    "parse_count",
    "parse_size",
    "ranks_of_stage",
    "read_api_keys",
    "read_credentials",
    "sampling_rank",
    "tls_context",
]
