"""Configuration: small frozen structs, composed; resolved once in `launch/resolve.py`, then sent to each process.

One definition gives the keyword, the command-line flag (`cli.py`) and the documentation. Names are vLLM's where vLLM
has the thing. Does not read models or devices.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from pyllm import plugins
from pyllm.config.option_texts import parse_hosts, parse_list, parse_origins, parse_size, parse_weights
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelImpl

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
KernelBackend = Literal["auto", "cpu", "reference", "triton"]
ExecutorBackend = Literal["mp", "uni"]
Quantization = Literal["auto", "none", "int8", "gguf", "compressed-tensors", "awq", "gptq", "fp8", "mxfp4"]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
# Names of parsers, as vLLM has them; those of one line read the same form.
TOOL_CALL_PARSERS = (
    *("auto", "none"),
    *("hermes", "granite4"),
    *("qwen3_coder", "qwen3_xml", "mimo", "step3p5"),
    *("functiongemma", "gemma4", "granite", "openai", "mistral", "phi4_mini_json", "minimax_m2", "seed_oss"),
    *("glm45", "glm47"),
    *("llama3_json", "llama4_json"),
    *("pythonic", "llama4_pythonic", "olmo3"),
    *("cohere_command3", "cohere_command4"),
)
REASONING_PARSERS = (
    *("auto", "none"),
    *("think", "qwen3", "deepseek_r1", "deepseek_v3", "glm45", "glm47", "holo2", "kimi_k2", "mimo", "minimax_m2"),
    *("nemotron_v3", "olmo3", "step3", "step3p5"),
    *("gemma4", "granite", "mistral", "openai_gptoss", "seed_oss"),
    *("cohere_command3", "cohere_command4"),
)
LogFormat = Literal["text", "json"]
PrefixHash = Literal["blake3", "sha256_cbor"]
UnknownFields = Literal["warn", "refuse", "ignore"]


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ModelConfig(_Config, frozen=True):
    """Which model, and in which precision."""

    model: Annotated[
        str,
        Meta(
            description="GGUF file, Hugging Face folder, or a model of the hub: owner/repo, owner/repo:Q4_K_M, "
            "owner/repo@revision; empty: the embedded SmolLM2-135M"
        ),
    ] = ""
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="names of the model in the API; answers carry the first; "
            "default: the model's name on the hub, or its file's"
        ),
    ] = ()
    tokenizer: Annotated[
        str,
        Meta(
            description="take the tokenizer and its chat template from here: a folder, a GGUF file or a model of the "
            "hub; default: the model's own"
        ),
    ] = ""
    revision: Annotated[
        str, Meta(description="branch, tag or commit of a model of the hub; default: main, or the one in its name")
    ] = ""
    tokenizer_revision: Annotated[str, Meta(description="the same of the model that --tokenizer names")] = ""
    download_dir: Annotated[str, Meta(description="folder for models of the hub; default: huggingface_hub's cache")] = (
        ""
    )
    hf_token: Annotated[
        str, Meta(description="token for the hub; HF_TOKEN in the environment keeps it out of the list of processes")
    ] = ""
    hf_overrides: Annotated[
        dict[str, Any],
        Meta(description="entries that replace those of the folder's config.json, as '{\"rope_theta\": 500000}'"),
    ] = {}
    chat_template: Annotated[
        str, Meta(description="chat template: a Jinja file, or the template itself; default: the tokenizer's")
    ] = ""
    generation_config: Annotated[
        str,
        Meta(
            description="sampling defaults: auto (the model's generation_config.json or GGUF fields), vllm (none), or "
            "the path of a generation_config.json or its folder"
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, int | float],
        Meta(description="sampling defaults that replace those of --generation-config, as '{\"temperature\": 0.5}'"),
    ] = {}
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="who computes the model: native (pyllm's families), transformers (other causal language models "
            "of that package, slower and not batch-invariant), or auto (native where there is a family)"
        ),
    ] = "auto"
    dtype: Annotated[
        Dtype,
        Meta(
            description="precision of activations and of unquantised weights; auto: the model's, or bfloat16 beside "
            "quantised weights (float16 on GPUs before 8.0)"
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="how weights are multiplied: none (as floats); gguf (the file's blocks, if there is a kernel); "
            "int8, on a CPU; or the method of a quantised folder; auto: the fastest for the model"
        ),
    ] = "auto"
    packed_cache_size: Annotated[
        int,
        Meta(
            description="limit on packed weights that are kept in the cache folder for the next start, such as 64GiB, "
            "or a number of GiB; 0 keeps none",
            ge=0,
        ),
    ] = 64 << 30
    max_model_len: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="longest prompt plus output, in tokens; default: the model's context"),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None,
        Meta(description="draw the seeds of requests that have none from this one; default: at random"),
    ] = None
    max_logprobs: Annotated[
        int, Meta(description="most log-probabilities for a token that a request may ask for", ge=0, le=1 << 16)
    ] = 20


DEFAULT_CPU_KV_CACHE_BYTES = 512 << 20  # of each rank; pages take memory when they are first written


class CacheConfig(_Config, frozen=True):
    """The paged KV cache."""

    block_size: Annotated[int, Meta(description="tokens in a KV block, a power of two", ge=1, le=1024)] = 16
    kv_cache_memory_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="size of each rank's KV cache, for example 64MiB; default: 512MiB on a CPU"),
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
    kv_offloading_size: Annotated[
        int,
        Meta(
            description="host memory of all ranks together for swapped and evicted KV blocks: 512MiB, or in GiB",
            ge=0,
        ),
    ] = 0  # Bytes here, whatever the unit was.
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


class KVEventsConfig(_Config, frozen=True):
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


class SchedulerConfig(_Config, frozen=True):
    """What one step may hold, and whom it serves first."""

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
        int, Meta(description="sequences that run at once; 0: 256 on GPUs from 40 GB on, else 128", ge=0, le=1 << 16)
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
    ] = {}
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
        str, Meta(description="new file that records the scheduler's calls, prompts included; see pyllm replay")
    ] = ""
    async_scheduling: Annotated[bool, Meta(description="plan a step while the step before is computed")] = True
    num_speculative_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=16)] | None,
        Meta(
            description="draft tokens (prompt lookup) that a step verifies for a stream that runs alone; 0: none; "
            "default: 5 with the Rust kernels, else 0"
        ),
    ] = None


class ParallelConfig(_Config, frozen=True):
    """How the model is spread over processes."""

    tensor_parallel_size: Annotated[int, Meta(description="ranks that share each weight matrix", ge=1)] = 1
    enable_expert_parallel: Annotated[
        bool, Meta(description="give each rank some of the experts whole, not a part of each")
    ] = False
    distributed_executor_backend: Annotated[
        ExecutorBackend, Meta(description="mp: a process for each rank; uni: the core's process runs the model")
    ] = "mp"
    disable_custom_all_reduce: Annotated[
        bool, Meta(description="between GPUs, add up by NCCL alone, and share no memory")
    ] = False


class DeviceConfig(_Config, frozen=True):
    """Where the model runs, and with which kernels."""

    device: Annotated[Device, Meta(description="auto takes CUDA where there is a GPU")] = "auto"
    kernel_backend: Annotated[KernelBackend, Meta(description="auto: Triton on CUDA, Rust on CPU")] = "auto"
    attention_backend: Annotated[
        str,
        Meta(
            description="auto (as the other kernels), triton, cpu, sdpa (plain torch), "
            "or an entry point of the group pyllm.attention_backends"
        ),
    ] = "auto"
    enforce_eager: Annotated[bool, Meta(description="do not capture steps as graphs")] = False
    batch_invariant: Annotated[
        bool,
        Meta(description="answers independent of the batch on a GPU, too, which is slower; on a CPU they always are"),
    ] = False


class RecoveryConfig(_Config, frozen=True):
    """What happens when a process dies."""

    max_restarts: Annotated[
        int, Meta(description="most restarts of a process in a minute; if it dies more often, the server ends", ge=0)
    ] = 10
    warm_spares: Annotated[
        bool, Meta(description="keep a spare core that has imported everything, for a core that dies")
    ] = True
    flight_recorder_dir: Annotated[
        str, Meta(description="folder for records of crashes; default: pyllm/crashes in the user's state folder")
    ] = ""
    flight_recorder_prompts: Annotated[
        bool, Meta(description="record the tokens of the requests in the fatal step, too")
    ] = False


class LogConfig(_Config, frozen=True):
    """The log on stderr, of every process."""

    log_format: Annotated[LogFormat, Meta(description="text, or a JSON object a line")] = "text"
    log_config_file: Annotated[
        str, Meta(description="JSON file for Python's logging.config.dictConfig, applied in every process")
    ] = ""


class EngineConfig(_Config, frozen=True):
    """All that an engine needs, whichever way in it is started."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    kv_events: KVEventsConfig = KVEventsConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    log: LogConfig = LogConfig()


# Defaults of the server's flags that the shared state needs, too.
IDEMPOTENCY_RETENTION = 600.0
MAX_STORED_RESPONSES = 1000


# Variables of a chat template that have fields of their own in a request, or are never the request's.
RESERVED_TEMPLATE_VARIABLES = frozenset(
    {
        *("add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "documents", "eos_token"),
        *("messages", "reasoning_effort", "tokenize", "tools"),
    }
)


class ServerConfig(_Config, frozen=True):
    """The HTTP server and its supervision."""

    host: Annotated[str, Meta(description="address to listen on", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 picks a free one", ge=0, le=65535)] = 8000
    shutdown_timeout: Annotated[
        float, Meta(description="seconds that running streams get to finish after SIGTERM or SIGINT", ge=0)
    ] = 30.0
    ready_timeout: Annotated[float, Meta(description="most seconds until a process is ready", gt=0)] = 600.0
    api_server_count: Annotated[int, Meta(description="API processes that share the port", ge=1, le=256)] = 1
    sse_keep_alive_interval: Annotated[
        float, Meta(description="seconds between comments in a quiet stream; 0: none", ge=0)
    ] = 15.0
    idempotency_retention: Annotated[
        float, Meta(description="seconds to keep the answer to a request with an Idempotency-Key", ge=0)
    ] = IDEMPOTENCY_RETENTION
    max_stored_responses: Annotated[int, Meta(description="most answers of /v1/responses in memory; 0: none", ge=0)] = (
        MAX_STORED_RESPONSES
    )
    tool_call_parser: Annotated[
        str,
        Meta(
            description="how the model writes tool calls: auto (as its chat template shows), none, hermes, "
            "qwen3_coder, gemma4, granite, openai and more (docs/tools.md), or an entry point of the group "
            "pyllm.tool_parsers"
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="how the model marks its reasoning: auto (as its chat template shows), none, think "
            "(<think>...</think>), granite, openai_gptoss and more (docs/tools.md), or an entry point of the group "
            "pyllm.reasoning_parsers"
        ),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        dict[str, Any],
        Meta(description="variables of the chat template for requests without them, as '{\"enable_thinking\": false}'"),
    ] = {}
    response_role: Annotated[
        str, Meta(description="role of the messages that chat completions answer with", min_length=1)
    ] = "assistant"
    trust_request_chat_template: Annotated[bool, Meta(description="allow chat templates in requests")] = False
    enable_force_include_usage: Annotated[
        bool, Meta(description="end every stream with its usage, as if stream_options.include_usage were true")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="name tokens in log-probabilities by their ids: token_id:123")
    ] = False
    unknown_fields: Annotated[
        UnknownFields,
        Meta(
            description="request fields without effect: warn (log, metrics, header pyllm-ignored-fields), "
            "refuse (400) or ignore"
        ),
    ] = "warn"
    uds: Annotated[str, Meta(description="Unix socket to listen on, instead of host and port")] = ""
    ssl_certfile: Annotated[str, Meta(description="certificate chain in PEM, for TLS")] = ""
    ssl_keyfile: Annotated[str, Meta(description="private key in PEM; default: in the file of --ssl-certfile")] = ""
    ssl_ca_certs: Annotated[
        str, Meta(description="CA certificates in PEM; clients must then have a certificate that these have signed")
    ] = ""
    ssl_cert_reqs: Annotated[
        Annotated[int, Meta(ge=0, le=2)] | None,
        Meta(
            description="certificates of clients: 0 not asked for, 1 checked if there is one, 2 required; default: 2 "
            "with --ssl-ca-certs"
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="origins whose pages may use the server (CORS): https://a.com,... or *")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="names that requests may have in their Host header: llm.example.com,...; default: any, but "
            "without keys only names of this machine for requests of a browser"
        ),
    ] = ()
    allowed_methods: Annotated[
        tuple[str, ...], Meta(description="methods that such pages may use: GET,POST,... or *")
    ] = ("*",)
    allowed_headers: Annotated[
        tuple[str, ...], Meta(description="request headers that such pages may send: x-a,x-b,... or *")
    ] = ("*",)
    allow_credentials: Annotated[
        bool, Meta(description="let such pages send cookies and TLS certificates; not with the origin *")
    ] = False
    root_path: Annotated[
        str, Meta(description="path under which a proxy shows this server, such as /llm; requests may have it or not")
    ] = ""
    middleware: Annotated[
        tuple[str, ...],
        Meta(
            description="ASGI middleware before the server, as module.Class, the first one outermost; streams are "
            "slower with it, as they no longer write to the socket directly"
        ),
    ] = ()
    disable_fastapi_docs: Annotated[bool, Meta(description="serve neither /docs nor /openapi.json")] = False
    api_key: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="keys that the server takes; others on this machine can see them, so prefer --api-key-file"),
    ] = ()
    api_key_file: Annotated[
        str,
        Meta(description="JSON or TOML file of API keys, made by `pyllm apikey NAME`; PYLLM_API_KEY may hold one, too"),
    ] = ""
    admin_on_loopback: Annotated[
        bool,
        Meta(description="open the routes below /admin to programs of this machine without a key of the role admin"),
    ] = False
    max_requests_per_minute: Annotated[
        int, Meta(description="most requests a minute of each key or tenant; 0: no limit", ge=0)
    ] = 0
    max_tokens_per_minute: Annotated[
        int, Meta(description="most tokens a minute, prompt and output, of each key or tenant; 0: no limit", ge=0)
    ] = 0
    max_concurrent_requests: Annotated[
        int, Meta(description="most requests at once of each key or tenant, running or waiting; 0: no limit", ge=0)
    ] = 0
    max_num_queued_reqs: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="most waiting sequences beyond max_num_seqs; further requests get a 503; 0: no bound; "
            "default: 16 times max_num_seqs, at least 256"
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        int, Meta(description="most waiting prompt tokens; further requests get a 503; 0: no bound", ge=0)
    ] = 0
    request_timeout: Annotated[
        float,
        Meta(description="most seconds for a request; the header x-request-timeout may shorten it; 0: none", ge=0),
    ] = 0.0
    max_request_body_bytes: Annotated[int, Meta(description="largest body of a request, for example 16MiB", ge=1)] = (
        10_000_000
    )
    disable_log_stats: Annotated[
        bool, Meta(description="do not log throughput, queue and cache every 10 s while requests run")
    ] = False
    enable_log_requests: Annotated[bool, Meta(description="log each request's id, prompt and sampling parameters")] = (
        False
    )
    enable_log_outputs: Annotated[bool, Meta(description="log each output, when it has ended")] = False
    max_log_len: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="most characters of a prompt or an output in the log; default: all"),
    ] = None
    otlp_traces_endpoint: Annotated[
        str, Meta(description="URL of an OpenTelemetry collector that gets a span for each request; needs pyllm[otel]")
    ] = ""


class HeadlessConfig(_Config, frozen=True):
    """A core without a server, for `EngineClient`."""

    bind: Annotated[str, Meta(description="ipc://PATH or tcp://HOST:PORT")] = ""
    curve_keys: Annotated[str, Meta(description="folder with keys for tcp://, made by `pyllm keygen`")] = ""
    insecure_tcp: Annotated[
        bool, Meta(description="serve tcp:// without keys: anyone may connect and change settings for all")
    ] = False
    shutdown_timeout: Annotated[
        float, Meta(description="seconds that running requests get to finish after SIGTERM or SIGINT", ge=0)
    ] = ServerConfig().shutdown_timeout
    ready_timeout: Annotated[float, Meta(description="most seconds until a process is ready", gt=0)] = (
        ServerConfig().ready_timeout
    )


Part = TypeVar("Part", bound=_Config)

# Options that are sizes, such as 64MiB, and the bytes that 1 without a unit stands for: as in vLLM.
SIZES = {
    "kv_cache_memory_bytes": 1,
    "kv_offloading_size": 1 << 30,
    "packed_cache_size": 1 << 30,
    "max_request_body_bytes": 1,
}
# Options that take several words as a flag, and as a keyword one text as well.
WORDS = frozenset({"served_model_name", "api_key"})
# Options whose values no message shows.
SECRETS = frozenset({"api_key", "hf_token"})
# Options that are lists; as a text they are separated by commas, or JSON.
LISTS = frozenset({"allowed_methods", "allowed_headers", "middleware"})
# Options that are objects; as a text they are JSON.
OBJECTS = frozenset({"override_generation_config", "hf_overrides", "default_chat_template_kwargs"})


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """Build an `EngineConfig` from flat names, as keywords and flags give them; None stands for the default.

    Raises:
        ConfigError: an unknown name (with the nearest known one), or a value out of its range.
    """
    remaining = dict(options)
    parts = {}
    for field in msgspec.structs.fields(EngineConfig):
        names = option_names(field.type)
        given = {name: remaining.pop(name) for name in names if name in remaining}
        parts[field.name] = config_part(field.type, {name: each for name, each in given.items() if each is not None})
    if remaining:
        raise ConfigError(_unknown_option(min(remaining)))
    return EngineConfig(**parts)


def config_part(kind: type[Part], options: dict[str, Any]) -> Part:
    """Build one part from its keywords, texts such as `64MiB` included; raises ConfigError as `engine_config` does."""
    try:
        return msgspec.convert({name: _read(name, value) for name, value in options.items()}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), options)) from None


def _explain(text: str, options: dict[str, Any]) -> str:
    """The error of a value with the name and the value in front: `max_num_seqs is -1: expected int >= 0`."""
    match = re.fullmatch(r"(.*) - at `\$\.(\w+)(.*)`", text)
    if match is None:
        return text
    expected, name, place = match.groups()
    value = "" if name in SECRETS else f" is {options.get(name)!r:.80}"
    return f"{name}{place}{value}: {expected[:1].lower()}{expected[1:].replace('`', '')}"


def option_names(kind: type[_Config] = EngineConfig) -> list[str]:
    """Every flat option of a part, or of the whole engine, in the order of its definition."""
    fields = msgspec.structs.fields(kind)
    if kind is EngineConfig:
        return [name for field in fields for name in option_names(field.type)]
    return [field.name for field in fields]


def _unknown_option(name: str) -> str:
    near = difflib.get_close_matches(name, option_names(), n=1)
    return f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _read(name: str, value: Any) -> Any:
    if name in SIZES:
        return _in_bytes(value, SIZES[name])
    if not isinstance(value, str):
        return value
    if name in WORDS:
        return (value,) if value else ()
    if name in OBJECTS:
        return _parse_object(name, value)
    if name in LISTS:
        return parse_list(name, value)
    return _TEXTS[name](value) if name in _TEXTS else value


def _parse_object(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} must be a JSON object, got {text!r:.80}: {error}") from None


def _in_bytes(value: Any, unit: int) -> Any:
    """A size given as a text or as a number of units; what is neither is left for the struct's own check to refuse."""
    if isinstance(value, str):
        return parse_size(value, unit)
    if unit > 1 and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value * unit)
    return value


def _tool_parser(name: str) -> str:
    plugins.find_entry_point("tool parser", name, plugins.TOOL_PARSERS, TOOL_CALL_PARSERS)
    return name


def _reasoning_parser(name: str) -> str:
    plugins.find_entry_point("reasoning parser", name, plugins.REASONING_PARSERS, REASONING_PARSERS)
    return name


def is_rust(config: DeviceConfig, device: str, dtypes: Set[str]) -> bool:
    """Whether the Rust kernels compute all of a step: then a token is bitwise the same whatever else is in it."""
    backends = {config.kernel_backend, config.attention_backend}
    return device == "cpu" and backends <= {"auto", "cpu"} and "float16" not in dtypes


# What else is read from a text, or looked up.
_TEXTS: Mapping[str, Callable[[str], Any]] = {
    "tenant_weights": parse_weights,
    "allowed_origins": parse_origins,
    "allowed_hosts": parse_hosts,
    "tool_call_parser": _tool_parser,
    "reasoning_parser": _reasoning_parser,
}
