"""The settings of an engine: small frozen structs, composed as `EngineConfig`, beside `ModelConfig`.

Resolved once in `launch/resolve.py`, then sent to each process. Does not read models or devices.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pyllm.config.kv_transfer_settings import KVTransferSettings
from pyllm.config.lora_settings import LoraConfig
from pyllm.config.model_settings import ModelConfig
from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.config.option_texts import parse_weights

Device = Literal["auto", "cpu", "cuda"]
KernelBackend = Literal["auto", "cpu", "reference", "triton"]
InstructionSet = Literal["auto", "portable", "avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx"]
ExecutorBackend = Literal["mp", "uni", "ray"]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
LogFormat = Literal["text", "json"]
PrefixHash = Literal["blake3", "sha256_cbor"]
CorePlacement = Literal["prefix", "round-robin"]

MAX_CORES = 64  # of one server, the limit of a `Placement`
MIN_CPU_KV_CACHE_BYTES = 512 << 20  # of each rank, where no size is set; on a Ray cluster also the default
SEQUENCES = 128  # of a core at once by default, unless there is a large card
DEFAULT_DISK_KV_CACHE_BYTES = 16 << 30  # of one folder


class CacheConfig(ConfigPart, frozen=True):
    """The paged KV cache."""

    block_size: Annotated[int, Meta(description="tokens in a KV block, a power of two", ge=1, le=1024)] = 16
    kv_cache_memory_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="size of each rank's KV cache, for example 64MiB; default on a CPU: half of what memory has "
            "left beside the model, but at least 512MiB, and no more than max_num_seqs sequences of the context need; "
            "on a Ray cluster: 512MiB"
        ),
        TextForm(size_unit=1),
    ] = None
    num_gpu_blocks_override: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="KV blocks of each rank, whatever memory there is; default: as many as fit"),
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        Meta(
            description="precision of the KV cache; fp8 on GPUs only; auto: bfloat16 with quantised weights on a CPU, "
            "else dtype"
        ),
    ] = "auto"
    gpu_memory_utilization: Annotated[
        float, Meta(description="share of a GPU's memory for weights and KV cache", gt=0, le=1)
    ] = 0.9
    enable_prefix_caching: Annotated[bool, Meta(description="reuse the KV blocks of equal prefixes")] = True
    disable_hybrid_kv_cache_manager: Annotated[
        bool, Meta(description="keep the KV blocks that are out of a sliding window, as if every layer read them")
    ] = False
    state_checkpoint_tokens: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="tokens of a prompt between two states that the prefix cache keeps, of a model whose layers "
            "keep a state of all tokens before; 0: only where prompts and outputs end, and where others branch off; "
            "default: 256, or more, so that they take no more memory than keys and values"
        ),
    ] = None
    kv_offloading_size: Annotated[
        int,
        Meta(
            description="host memory of all ranks together for swapped and evicted KV blocks: 512MiB, or in GiB",
            ge=0,
        ),
        TextForm(size_unit=1 << 30),
    ] = 0  # in bytes
    kv_cache_dir: Annotated[
        str,
        Meta(
            description="folder on this machine that keeps KV blocks for the next start and for other servers, which "
            "may have it open at once; empty: none does"
        ),
        TextForm(metavar="FOLDER"),
    ] = ""
    kv_cache_disk_size: Annotated[
        int,
        Meta(description="most bytes that kv_cache_dir takes, of all servers together, for example 100GiB", ge=1 << 20),
        TextForm(size_unit=1),
    ] = DEFAULT_DISK_KV_CACHE_BYTES
    kv_cache_redis_url: Annotated[
        str,
        Meta(
            description="Redis that keeps KV blocks for several engines: redis://, rediss:// (TLS) or unix://; needs "
            "pyllm[redis]. Others on this machine can see a password on the command line: write it into the file of "
            "--config"
        ),
        TextForm(metavar="URL", is_secret=True),
    ] = ""
    max_pinned_blocks: Annotated[
        int, Meta(description="most KV blocks that pins keep from eviction", ge=0, le=(1 << 31) - 1)
    ] = 0
    prefix_hash: Annotated[
        PrefixHash,
        Meta(description="the digest that names KV blocks; sha256_cbor: the one of vLLM, which routers can compute"),
    ] = "blake3"
    prefix_hash_seed: Annotated[
        str, Meta(description="with sha256_cbor, what PYTHONHASHSEED is for vLLM and its routers")
    ] = "0"
    enable_kv_cache_events: Annotated[
        bool,
        Meta(description="let every client follow the prefix cache's contents, the tokens of all prompts included"),
    ] = False


# The settings of the cache that the scheduler has under the same names.
CACHE_SETTINGS_OF_SCHEDULER = (
    "block_size",
    "enable_prefix_caching",
    "max_pinned_blocks",
    "prefix_hash",
    "prefix_hash_seed",
    "enable_kv_cache_events",
)


class KVEventsConfig(ConfigPart, frozen=True):
    """The publisher of the prefix cache's events, in vLLM's frames."""

    kv_events_endpoint: Annotated[
        str,
        Meta(
            description="publish the prefix cache's events at this ZeroMQ address: tcp://*:5557 and "
            "tcp://127.0.0.1:5557 are bound, another host is connected to; empty: no publisher. Whoever reaches it "
            "reads all prompts"
        ),
    ] = ""
    kv_events_replay_endpoint: Annotated[
        str, Meta(description="answer subscribers that missed batches at this ZeroMQ address; empty: nobody does")
    ] = ""
    kv_events_buffer_steps: Annotated[
        int, Meta(description="batches that are kept for replay, 256 MiB at most", ge=1, le=1_000_000)
    ] = 10_000
    kv_events_hwm: Annotated[
        int, Meta(description="batches that wait for a slow subscriber before it misses some", ge=1, le=10_000_000)
    ] = 100_000
    kv_events_topic: Annotated[str, Meta(description="topic of the batches")] = ""
    kv_events_layout: Annotated[
        Literal["map", "array"], Meta(description="how an event is written; array: as vLLM before 0.28")
    ] = "map"
    kv_events_hashes: Annotated[
        Literal["int", "bytes"], Meta(description="int: the last 8 bytes of a block's hash, vLLM's default; bytes: all")
    ] = "int"
    kv_events_tokens: Annotated[bool, Meta(description="publish the tokens of blocks, not their hashes alone")] = True


class SchedulerConfig(ConfigPart, frozen=True):
    """Limits of one step, and the order in which requests are served."""

    max_num_batched_tokens: Annotated[
        int,
        Meta(
            description="tokens computed in one step; 0: 8192 on GPUs from 40 GB on, 2048 on smaller ones, 192 on a "
            "CPU, or max_num_seqs if that is more",
            ge=0,
            le=1 << 20,
        ),
    ] = 0
    max_num_seqs: Annotated[
        int,
        Meta(
            description=f"sequences that run at once; 0: 256 on GPUs from 40 GB on, else {SEQUENCES}", ge=0, le=1 << 16
        ),
    ] = 0
    long_prefill_token_threshold: Annotated[
        int, Meta(description="most tokens of one prompt in a step; 0: no cap", ge=0, le=(1 << 31) - 1)
    ] = 0
    inter_token_target: Annotated[
        float,
        Meta(
            description="most seconds between two tokens of a stream while prompts are computed; 0: no bound",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    scheduling_policy: Annotated[
        str, Meta(description="fcfs, priority, shortest, fair, or an entry point of the group pyllm.policies")
    ] = "fcfs"
    tenant_weights: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]],
        Meta(description="weights of tenants under the policy fair, as team-a=3,team-b=1; other tenants weigh 1"),
        TextForm(parse=parse_weights),
    ] = msgspec.field(default_factory=dict)
    watermark: Annotated[
        float,
        Meta(
            description="share of the KV blocks, 0 to 0.99, that admission leaves free while requests run",
            ge=0,
            le=0.99,
        ),
    ] = 0.01
    expected_growth: Annotated[
        float,
        Meta(
            description="how much of running requests' expected growth admission leaves room for; 1: all of it",
            ge=0,
            le=16,
        ),
    ] = 1.0
    scheduler_recording: Annotated[
        str,
        Meta(
            description="new file that records the scheduler's calls, prompts included; see pyllm replay; with several "
            "cores also FILE.core-1, ..., and FILE.placement-0, ...: where each API process places requests"
        ),
    ] = ""
    async_scheduling: Annotated[bool, Meta(description="plan a step while the step before is computed")] = True
    num_speculative_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=16)] | None,
        Meta(
            description="draft tokens (prompt lookup) that a step verifies for a stream that runs alone; 0: none; "
            "default: 5 with the Rust kernels, else 0"
        ),
    ] = None


# Settings of `SchedulerConfig` that cannot change while the engine runs; `reconfigure` sets the others.
FIXED_SCHEDULER_SETTINGS = ("max_num_seqs", "scheduler_recording", "async_scheduling", "num_speculative_tokens")


class ParallelConfig(ConfigPart, frozen=True):
    """The parallelism: ranks, stages and cores of the model."""

    tensor_parallel_size: Annotated[int, Meta(description="ranks that share each weight matrix", ge=1)] = 1
    pipeline_parallel_size: Annotated[
        int, Meta(description="stages that the layers are split into, each of tensor_parallel_size ranks", ge=1)
    ] = 1
    data_parallel_size: Annotated[
        int,
        Meta(
            description="cores that serve the model side by side, each with all of the weights, ranks, GPUs and a KV "
            "cache of its own: sizes such as kv_cache_memory_bytes and max_num_seqs are of each core",
            ge=1,
            le=MAX_CORES,
        ),
    ] = 1
    data_parallel_placement: Annotated[
        CorePlacement,
        Meta(
            description="prefix: each request goes to the core expected to finish it first, by queued work, speed and "
            "cached prefix; round-robin: to each core in turn"
        ),
    ] = "prefix"
    enable_expert_parallel: Annotated[
        bool, Meta(description="give each rank some of the experts whole, not a part of each")
    ] = False
    distributed_executor_backend: Annotated[
        ExecutorBackend,
        Meta(
            description="mp: a process for each rank; uni: the core's process runs the model; ray: a process for each "
            "rank, on the nodes of a Ray cluster"
        ),
    ] = "mp"
    ray_address: Annotated[
        str,
        Meta(
            description="the Ray cluster that ranks run on, HOST:PORT; auto: the one of RAY_ADDRESS, else of this "
            "machine",
            min_length=1,
        ),
    ] = "auto"
    ray_num_cpus: Annotated[
        int,
        Meta(
            description="CPUs of a Ray node that each rank takes; also its threads, unless num_threads says otherwise",
            ge=1,
        ),
    ] = 1
    disable_custom_all_reduce: Annotated[
        bool, Meta(description="between GPUs, add up by NCCL alone, and share no memory")
    ] = False


class DeviceConfig(ConfigPart, frozen=True):
    """The device that the model runs on, and its kernels."""

    device: Annotated[Device, Meta(description="auto takes CUDA where there are a GPU and pyllm[gpu]")] = "auto"
    kernel_backend: Annotated[KernelBackend, Meta(description="auto: Triton on CUDA, Rust on CPU")] = "auto"
    attention_backend: Annotated[
        str,
        Meta(
            description="auto (as the other kernels), triton, cpu, sdpa (plain torch), "
            "or an entry point of the group pyllm.attention_backends"
        ),
    ] = "auto"
    instruction_set: Annotated[
        InstructionSet,
        Meta(
            description="instructions of the kernels on a CPU, for all engines of a process; auto: the fastest that it "
            "has. Others are for comparisons"
        ),
    ] = "auto"
    num_threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="threads that each rank computes with; default: its share of the cores that this process may "
            "use, or of those that its control group gives time for (docker --cpus, Kubernetes)"
        ),
    ] = None
    enforce_eager: Annotated[bool, Meta(description="do not capture steps as graphs")] = False
    batch_invariant: Annotated[
        bool,
        Meta(description="answers independent of the batch on a GPU, too, which is slower; on a CPU they always are"),
    ] = False


class SparseAttentionConfig(ConfigPart, frozen=True):
    """The choice of KV blocks that the tokens of an output attend to. Prompts attend to everything."""

    sparse_attention: Annotated[
        str,
        Meta(
            description="how the KV blocks are chosen that an output's tokens attend to: quest (by bounds of their "
            "keys), mean (by their mean), or an entry point of the group pyllm.kv_selectors; empty: all blocks. It "
            "changes answers. On a CPU only"
        ),
    ] = ""
    sparse_attention_top_k: Annotated[
        int,
        Meta(description="with sparse_attention, blocks that are chosen for each token and layer", ge=0, le=1 << 20),
    ] = 64
    sparse_attention_sink_blocks: Annotated[
        int, Meta(description="with sparse_attention, first blocks that are read in any case", ge=0, le=1 << 20)
    ] = 1
    sparse_attention_recent_blocks: Annotated[
        int, Meta(description="with sparse_attention, last blocks that are read in any case", ge=1, le=1 << 20)
    ] = 4
    sparse_attention_dense_layers: Annotated[
        int, Meta(description="with sparse_attention, first layers that read all blocks", ge=0, le=1 << 20)
    ] = 2


class RecoveryConfig(ConfigPart, frozen=True):
    """Restarts of processes that die, and records of crashes."""

    max_restarts: Annotated[
        int, Meta(description="most restarts of a process in a minute; if it dies more often, the server ends", ge=0)
    ] = 10
    warm_spares: Annotated[
        bool, Meta(description="keep a spare core and worker that have imported everything, for one that dies")
    ] = True
    flight_recorder_dir: Annotated[
        str,
        Meta(description="folder for records of crashes; default: pyllm/crashes in the user's state folder"),
        TextForm(metavar="FOLDER"),
    ] = ""
    flight_recorder_prompts: Annotated[
        bool, Meta(description="record the tokens of the requests in the fatal step, too")
    ] = False


class LogConfig(ConfigPart, frozen=True):
    """The log on stderr, of every process."""

    log_format: Annotated[LogFormat, Meta(description="text, or a JSON object a line")] = "text"
    log_config_file: Annotated[
        str,
        Meta(description="JSON file for Python's logging.config.dictConfig, applied in every process"),
        TextForm(metavar="FILE"),
    ] = ""


class EngineConfig(ConfigPart, frozen=True):
    """All settings of an engine, whether a server, a core or Python starts it."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    kv_events: KVEventsConfig = KVEventsConfig()
    kv_transfer: KVTransferSettings = KVTransferSettings()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    sparse: SparseAttentionConfig = SparseAttentionConfig()
    lora: LoraConfig = LoraConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    log: LogConfig = LogConfig()


def is_rust(config: DeviceConfig, device: str) -> bool:
    """Whether the Rust kernels compute the whole step: a token is then bitwise independent of the rest of the batch."""
    backends = {config.kernel_backend, config.attention_backend}
    return device == "cpu" and backends <= {"auto", "cpu"}
