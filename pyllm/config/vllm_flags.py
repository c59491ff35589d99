"""vLLM's flags as data: settings of pyllm too, without an effect here, or refused with a replacement.

`docs/vllm-flags.md` is generated from it. Names and meanings are vLLM 0.33's. Reads no command line.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

Meaning = Literal["ours", "always", "refused"]


class VllmFlag(msgspec.Struct, frozen=True, kw_only=True):
    """One flag; `name` is its long name without hyphens in front.

    `text` is the difference from vLLM of an `ours` flag, if any; the notice of an `always`; the replacement of a
    `refused`. `taken` are values that are accepted without an effect; for a boolean, `true` (the flag) and `false`
    (`--no-...`). `else_text` is the error for other values of an `always`. `values` maps vLLM's values to pyllm's.
    """

    name: str
    meaning: Meaning
    text: str = ""
    aliases: tuple[str, ...] = ()
    is_boolean: bool = False
    is_list: bool = False
    taken: tuple[str, ...] = ()
    else_text: str = ""
    values: Mapping[str, str] = {}

    @property
    def flag(self) -> str:
        """The name with its hyphens."""
        return f"--{self.name}"


def _ours(name: str, text: str = "", *aliases: str, **values: str) -> VllmFlag:
    return VllmFlag(name=name, meaning="ours", text=text, aliases=aliases, values=values)


def _always(name: str, text: str, *taken: str, instead: str = "", aliases: tuple[str, ...] = ()) -> VllmFlag:
    return VllmFlag(name=name, meaning="always", text=text, taken=taken, else_text=instead, aliases=aliases)


def _on(name: str, text: str, instead: str = "") -> VllmFlag:
    """A boolean that is always on here. Turning it off is refused with `instead`, or has no effect without it."""
    taken = ("true",) if instead else ("true", "false")
    return VllmFlag(name=name, meaning="always", text=text, is_boolean=True, taken=taken, else_text=instead)


def _hints(text: str, *names: str) -> tuple[VllmFlag, ...]:
    """Flags with a value that affects only speed."""
    return tuple(_always(name, text) for name in names)


def _switches(text: str, *names: str) -> tuple[VllmFlag, ...]:
    """Boolean flags that affect only speed."""
    return tuple(_on(name, text) for name in names)


def _refused(name: str, text: str, *taken: str, aliases: tuple[str, ...] = ()) -> VllmFlag:
    return VllmFlag(name=name, meaning="refused", text=text, taken=taken, aliases=aliases)


def _off(name: str, text: str, *aliases: str) -> VllmFlag:
    """A boolean that is always off here."""
    return VllmFlag(name=name, meaning="refused", text=text, aliases=aliases, is_boolean=True, taken=("false",))


_USES = "a model generates text and embeds, or only embeds, or only classifies, as its files say"
_TEXT_ONLY = "only text is served"
_SLEEP = "every engine can sleep (docs/weights.md), and has no settings of it"
_NO_COHERE = "there is no API of Cohere's: use /v1/chat/completions"
_ONE_MACHINE = "pyllm starts ranks on this machine: for several machines use --distributed-executor-backend ray"
_DIVIDED = (
    "the model is divided by --tensor-parallel-size and --pipeline-parallel-size, whose ranks have no such setting"
)
_KERNELS = "kernels are pyllm's own: --kernel-backend and --attention-backend choose them"
_CAPTURES = "steps are captured as graphs by themselves: --enforce-eager captures none"
_WEIGHTS = "weights are read by mapping the files, on all cores"
_EXPERTS = "--enable-expert-parallel has no settings of its own"
_RANKS = "ranks exchange what they have to by themselves"
_NO_NODES = "ranks find one another by themselves, so it has no effect"
_OTHER_MACHINES = (
    "--data-parallel-size is of this machine: start `pyllm core` on each of the others, and add it by POST /admin/cores"
)
_NO_COORDINATOR = "cores need no coordinator, so it has no effect"
_BALANCES = "API processes place requests on cores themselves: for a router outside, start servers with one core each"

GROUPS: Mapping[str, tuple[VllmFlag, ...]] = {
    "model": (
        _ours("model"),
        _ours("served-model-name"),
        _ours("tokenizer"),
        _always(
            "tokenizer-mode",
            "the tokenizer is that of the model's files",
            *("auto", "hf", "slow"),
            instead="the tokenizer is read from tokenizer.json or the GGUF file: name another by --tokenizer",
        ),
        _ours("revision"),
        _ours("tokenizer-revision"),
        _always("code-revision", "code from a model's repository is never run"),
        _ours("download-dir"),
        _ours("hf-token"),
        _ours("hf-overrides", "of Hugging Face folders, not of GGUF files; a JSON object"),
        _on(
            "trust-remote-code",
            "code from a model's repository is never run: pyllm's families or transformers compute the model",
        ),
        _ours(
            "load-format",
            "dummy makes weights up; else the files themselves say their format",
            hf="auto",
            safetensors="auto",
            gguf="auto",
        ),
        _ours("dtype", half="float16", float="float32"),
        _ours(
            "quantization",
            "the method of a quantised folder is found in its files; int8 and none are pyllm's own",
            "-q",
            awq_marlin="awq",
            gptq_marlin="gptq",
        ),
        _ours("max-model-len", "`auto` and -1: the model's context; the KV cache may hold less, which the log says"),
        _ours("seed", "seeds of requests that have none, drawn in the order of their arrival; vLLM's default is 0"),
        _always("config-format", "the files themselves say their format", "auto", "hf", instead="leave it auto"),
        _ours("model-impl", vllm="native"),
        _always(
            "runner",
            _USES,
            *("auto", "generate", "pooling"),
            instead="models generate, embed or classify: leave it auto",
        ),
        _always(
            "convert",
            _USES,
            *("auto", "none", "embed"),
            instead="models are not made into classifiers or rewards here, those that are need no flag: leave it auto",
        ),
        _refused("pooler-config", "embeddings pool as the model's files say; requests may give `dimensions`"),
        _ours("generation-config"),
        _ours("override-generation-config"),
        _off("skip-tokenizer-init", "for token ids without a tokenizer use `pyllm core` and pyllm.EngineClient"),
        _ours("enforce-eager"),
        _ours("max-logprobs"),
        _refused(
            "logits-processors",
            "install the processor as an entry point of the group pyllm.logits_processors; requests name it in "
            "extra_args",
        ),
        _ours("logprobs-mode"),
    ),
    "cache": (
        _ours("block-size", "a power of two"),
        _ours("gpu-memory-utilization", "", "--device-memory-utilization"),
        _ours("kv-cache-dtype", fp8_e4m3="fp8"),
        _ours("kv-cache-memory-bytes"),
        _ours("num-gpu-blocks-override", "on CPUs, too"),
        _ours("enable-prefix-caching"),
        _ours(
            "prefix-caching-hash-algo",
            "it is --prefix-hash, which has sha256_cbor; blake3 takes the place of the others",
        ),
        _refused(
            "cpu-offload-gb",
            "weights stay where they are computed: use a quantised model, or --device cpu, which maps packed weights "
            "from disk if memory is short",
            *("0", "0.0"),
        ),
        _ours("kv-offloading-size", "in GiB without a unit; all ranks together"),
        _always(
            "kv-offloading-backend",
            "KV blocks go to host memory by pyllm itself",
            "native",
            instead="KV blocks go to host memory by pyllm itself: give --kv-offloading-size alone",
        ),
        _ours("swap-space", "is --kv-offloading-size: as many GiB for each rank"),
    ),
    "scheduler": (
        _ours("max-num-batched-tokens"),
        _ours("max-num-seqs"),
        _refused("max-num-active-seqs", "as many run at once as --max-num-seqs says"),
        _ours("max-num-queued-reqs", "counts waiting sequences beyond --max-num-seqs"),
        _ours("max-num-queued-tokens"),
        _ours("scheduling-policy", "has shortest and fair, too, and policies of other packages"),
        _on("enable-chunked-prefill", "long prompts are always computed in chunks", "prompts are always in chunks"),
        _ours("long-prefill-token-threshold"),
        _ours("async-scheduling"),
        _always(
            "stream-interval",
            "each step's tokens are sent at once",
            "1",
            instead="each step's tokens are sent at once; what a slow reader has not taken is merged",
        ),
        _ours("watermark"),
        _ours("disable-hybrid-kv-cache-manager"),
    ),
    "parallel": (
        _ours("tensor-parallel-size", "", "-tp"),
        _ours("pipeline-parallel-size", "", "-pp"),
        _ours(
            "data-parallel-size",
            "cores on this machine behind one address, each with all of the model; experts are not spread over them",
            "-dp",
        ),
        _refused("data-parallel-size-local", _OTHER_MACHINES, aliases=("-dpl",)),
        _refused("data-parallel-start-rank", _OTHER_MACHINES, "0", aliases=("-dpr",)),
        _refused("data-parallel-rank", _OTHER_MACHINES, aliases=("-dpn",)),
        _always("data-parallel-address", _NO_COORDINATOR, aliases=("-dpa",)),
        _always("data-parallel-rpc-port", _NO_COORDINATOR, aliases=("-dpp",)),
        _always(
            "data-parallel-backend",
            "cores are processes of this machine",
            "mp",
            instead=_OTHER_MACHINES,
            aliases=("-dpb",),
        ),
        _off("data-parallel-hybrid-lb", _BALANCES, "-dph"),
        _off("data-parallel-external-lb", _BALANCES, "-dpe"),
        _off("data-parallel-multi-port-external-lb", _BALANCES, "-dpm"),
        _refused("prefill-context-parallel-size", _DIVIDED, "1", aliases=("-pcp",)),
        _refused("decode-context-parallel-size", _DIVIDED, "1", aliases=("-dcp",)),
        _ours("enable-expert-parallel", "", "-ep"),
        _ours("distributed-executor-backend", "mp, uni and ray", external_launcher="uni"),
        _refused("nnodes", f"{_ONE_MACHINE}; llama.cpp's -n is max_tokens of a request", "1", aliases=("-n",)),
        _refused("node-rank", _ONE_MACHINE, "0", aliases=("-r",)),
        _always("master-addr", _NO_NODES),
        _always("master-port", _NO_NODES),
        _ours("disable-custom-all-reduce"),
        _off("headless", "a core without HTTP is another command: pyllm core --bind ADDRESS"),
        _ours("api-server-count", "", "-asc"),
    ),
    "speed": (
        *_hints(_KERNELS, "moe-backend", "linear-backend", "sparse-indexer-topk-backend", "ir-op-priority"),
        *_switches(_KERNELS, "enable-flashinfer-autotune", "monokernel", "disable-cascade-attn"),
        *_hints(_CAPTURES, "optimization-level", "performance-mode", "max-cudagraph-capture-size"),
        VllmFlag(name="cudagraph-capture-sizes", meaning="always", text=_CAPTURES, is_list=True),
        *_hints(_WEIGHTS, "safetensors-load-strategy", "safetensors-prefetch-num-threads"),
        *_hints(_WEIGHTS, "safetensors-prefetch-block-size", "pt-load-map-location", "max-parallel-loading-workers"),
        *_switches(_WEIGHTS, "use-tqdm-on-load"),
        *_hints(_EXPERTS, "all2all-backend", "expert-placement-strategy", "eplb-config"),
        *_switches(_EXPERTS, "enable-eplb", "enable-ep-weight-filter"),
        *_hints(_RANKS, "ubatch-size", "dbo-decode-token-threshold", "dbo-prefill-token-threshold", "dp-sync-interval"),
        *_switches(_RANKS, "enable-dbo", "enable-hc-sp", "enable-shm-tensor-arena", "enable-batch-sharded-sampling"),
        *_switches(_RANKS, "disable-nccl-for-dp-synchronization"),
        *_hints(_TEXT_ONLY, "mm-processor-cache-gb", "mm-processor-cache-type", "mm-encoder-tp-mode"),
        *_hints("requests are prepared in every API process: --api-server-count", "renderer-num-workers"),
        *_switches("sliding windows have no settings of their own", "swa-bounded-replay"),
        *_switches("--long-prefill-token-threshold is as it is given", "long-prefill-token-threshold-adaptive"),
        *_switches("there is no late interaction (ColBERT)", "enable-flash-late-interaction"),
    ),
    "features": (
        *map(_ours, ("enable-lora", "max-loras", "max-lora-rank", "max-cpu-loras")),
        _ours("lora-modules", "base_model_name has no effect: a server has one model"),
        _always(
            "lora-dtype",
            "adapters have the model's dtype",
            "auto",
            instead="adapters have the model's dtype: use auto",
        ),
        _ours(
            "speculative-config",
            "method ngram: its num_speculative_tokens is --num-speculative-tokens; prompt_lookup_max and _min have no "
            "effect; there are no draft models",
            "-sc",
        ),
        _always(
            "spec-method",
            "draft tokens come from the stream's own text",
            "ngram",
            instead="draft tokens come from the stream's own text: use ngram",
        ),
        _ours("spec-tokens", "is --num-speculative-tokens"),
        _ours(
            "structured-outputs-config",
            "llguidance compiles every constraint, whatever the backend; reasoning_parser is --reasoning-parser",
        ),
        _ours(
            "kv-transfer-config",
            "the same keys; connectors are StoreConnector and entry points of the group pyllm.kv_connectors",
        ),
        _ours(
            "kv-events-config",
            "its endpoint is --kv-events-endpoint, and so on; without one events are published on the loopback alone",
        ),
        _ours(
            "compilation-config",
            "nothing is compiled: level 0 and cudagraph_mode NONE are --enforce-eager, all else has no effect",
            *("-O", "-cc"),
        ),
        _ours(
            "attention-backend",
            "triton, cpu and sdpa; other packages may add theirs",
            TRITON_ATTN="triton",
            CPU_ATTN="cpu",
            TORCH_SDPA="sdpa",
        ),
        _refused("attention-config", "its backend is --attention-backend", aliases=("-ac",)),
        _refused("diffusion-config", "models generate token by token", aliases=("-dc",)),
        _refused("watermark-config", "outputs are not watermarked"),
        _refused("aux-output-config", "which experts tokens were routed to is not given"),
        _refused("limit-mm-per-prompt", f"{_TEXT_ONLY}: leave it out, or make every limit 0"),
        _refused("mm-processor-kwargs", _TEXT_ONLY),
        _on("enable-sleep-mode", "`POST /sleep` and `LLM.sleep` are always there"),
        _refused("profiler-config", "it needs no flag: POST /admin/profile records the next steps"),
    ),
    "tools and reasoning": (
        _on("enable-auto-tool-choice", "tool_choice auto always works", "use --tool-call-parser none"),
        _ours("tool-call-parser", "auto unless given: as the chat template shows"),
        _refused("tool-parser-plugin", "install the parser as an entry point of the group pyllm.tool_parsers"),
        _ours("reasoning-parser", "auto unless given: as the chat template shows"),
        _refused(
            "reasoning-parser-plugin", "install the parser as an entry point of the group pyllm.reasoning_parsers"
        ),
        _ours("chat-template"),
        _always(
            "chat-template-content-format",
            "templates get the content of a message as text",
            *("auto", "string"),
            instead="templates get the content of a message as text: leave it auto",
        ),
        _ours("default-chat-template-kwargs"),
        _ours("response-role", "of chat completions"),
        _on(
            "exclude-tools-when-tool-choice-none",
            "tools are left out of the prompt with tool_choice none",
            "a model that may call nothing is shown no tools",
        ),
        _ours("trust-request-chat-template"),
        _off("trust-request-mm-kwargs", _TEXT_ONLY),
        _always(
            "tool-strict-level",
            "calls follow the schemas of tools that are strict or must be called",
            "auto",
            instead="give the tools `strict: true`, or set tool_choice to required",
        ),
        _refused("reasoning-effort-map", "requests give reasoning_effort as the chat template knows it"),
        _always(
            "anthropic-disabled-thinking-effort",
            "thinking is turned off by the chat template's variable enable_thinking",
            *("auto", "none"),
            instead="thinking is off or on: requests may give output_config.effort",
        ),
    ),
    "server": (
        _ours("host", "127.0.0.1 unless given; vLLM listens on all addresses"),
        _ours("port"),
        _ours("uds"),
        _ours("api-key", "others on this machine see it in the list of processes: --api-key-file is safer"),
        _ours("root-path"),
        _ours(
            "middleware",
            "a class, or a function that takes the application and gives one; streams are slower with it, as they no "
            "longer write to the socket directly",
        ),
        _ours("allowed-origins", "none unless given; vLLM allows all"),
        _ours("allowed-methods"),
        _ours("allowed-headers"),
        _ours("allow-credentials", "needs origins by name"),
        _ours("ssl-keyfile"),
        _ours("ssl-certfile"),
        _ours("ssl-ca-certs"),
        _ours("ssl-cert-reqs", "2 unless given where there are CA certificates; vLLM's default is 0"),
        _refused("ssl-ciphers", "the ciphers are Python's defaults, for TLS 1.2 and newer"),
        _always("uvicorn-log-level", "PYLLM_LOG_LEVEL sets the level of the whole log"),
        _on("disable-uvicorn-access-log", "there is no access log unless --access-log is given"),
        _always(
            "disable-access-log-for-endpoints",
            "--access-log, without which there is none, leaves out probes",
        ),
        _ours("disable-fastapi-docs", "no /docs and no /openapi.json"),
        _on("enable-offline-docs", "/docs loads nothing from other hosts"),
        _on("enable-request-id-headers", "every answer has x-request-id", "every answer has x-request-id"),
        _on("enable-server-load-tracking", "/load is always there", "/load costs nothing unless it is asked"),
        _on("enable-prompt-tokens-details", "usage always has prompt_tokens_details", "usage always has the details"),
        _ours("enable-force-include-usage"),
        _off("enable-per-request-metrics", "answers have no times: /metrics and --otlp-traces-endpoint have them"),
        _always(
            "fingerprint-mode",
            "system_fingerprint is of all that tokens depend on besides the seed",
            *("full", "hash"),
            instead="system_fingerprint is of all that tokens depend on besides the seed: leave it full",
        ),
        _refused("fingerprint-value", "system_fingerprint is of all that tokens depend on besides the seed"),
        _off("enable-scale-out", "/tokenize gives a prompt's token ids, and /v1/completions takes them"),
        _on("enable-tokenizer-info-endpoint", "/tokenizer_info is always there", "/tokenizer_info is always there"),
        _ours("return-tokens-as-token-ids"),
        _ours("sse-keep-alive-interval"),
        _ours("shutdown-timeout", "30 s unless given; vLLM's default is 0"),
        _ours("config"),
    ),
    "logs and metrics": (
        _ours("disable-log-stats"),
        _ours("enable-log-requests", "prompts are logged, too, cut at --max-log-len"),
        _ours("enable-log-outputs"),
        _ours("max-log-len"),
        _on("enable-log-deltas", "--enable-log-outputs logs an output when it has ended, and no deltas"),
        _ours("log-config-file", "JSON for Python's logging.config.dictConfig, in every process"),
        _ours("logging-config", "its formatter is --log-format, its pylogging_config_file --log-config-file"),
        _always("log-level", "PYLLM_LOG_LEVEL sets the level of the whole log"),
        _always("watchdog-config", "a process that hangs is replaced, and the log says so"),
        _ours("otlp-traces-endpoint", "OTLP over HTTP"),
        _refused("collect-detailed-traces", "there is one span for each request: --otlp-traces-endpoint"),
        _always("show-hidden-metrics-for-version", "no metric is hidden"),
        _refused("custom-histogram-buckets", "the buckets of /metrics are fixed"),
        _off("kv-cache-metrics", "/metrics has the KV cache's use and hits, not how long blocks stay"),
    ),
    "of other versions, and others": (
        _on("disable-log-requests", "requests are not logged unless --enable-log-requests asks for it"),
        _on("language-model-only", "only text is served", "only text is served"),
        _always(
            "task",
            _USES,
            *("auto", "generate", "embed", "embedding", "classify", "score"),
            instead="models generate, embed or classify: leave it auto",
        ),
    ),
}

VLLM_FLAGS: Mapping[str, VllmFlag] = {flag.name: flag for group in GROUPS.values() for flag in group}

# vLLM's other flags, by the replacement or the reason for which they have no meaning here; it may be empty.
OTHERS: Mapping[str, tuple[str, ...]] = {
    _TEXT_ONLY: (
        *("allowed-local-media-path", "allowed-media-domains", "enable-mm-embeds"),
        *("media-io-kwargs", "mm-hasher-algorithm", "mm-shm-cache-max-object-size-mb", "mm-encoder-only"),
        *(
            "mm-encoder-attn-backend",
            "mm-encoder-attn-dtype",
            "mm-encoder-fp8-scale-path",
            "mm-encoder-fp8-scale-save-path",
        ),
        *("mm-encoder-fp8-scale-save-margin", "interleave-mm-strings", "skip-mm-profiling", "video-pruning-rate"),
        *("video-pruning-method", "mm-tensor-ipc", "mm-processor-device", "mm-ipc-gpu-memory-gb"),
        *("mm-device-do-normalize", "disable-chunked-mm-input", "ec-transfer-config", "ec-manager-config"),
        *("io-processor-plugin", "disable-mm-preprocessor-cache", "enable-mm-processor-stats"),
    ),
    "states are in float32, and --state-checkpoint-tokens says when one is kept": (
        *("mamba-backend", "mamba-ssu-algorithm", "enable-mamba-cache-stochastic-rounding"),
        *("mamba-cache-philox-rounds", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "mamba-block-size"),
        *("mamba-cache-mode", "replayssm-buffer-len", "use-replayssm", "gdn-prefill-backend", "kda-prefill-backend"),
        *("kda-decode-backend", "enable-mamba-shared-prefix-checkpoint", "mamba-config"),
    ),
    _DIVIDED: (
        *("distributed-timeout-seconds", "cpu-distributed-timeout-seconds"),
        *("dcp-comm-backend", "dcp-q-replicate", "dcp-kv-cache-interleave-size", "cp-kv-cache-interleave-size"),
        *("ray-workers-use-nsight", "enable-nccl-comm-suspend"),
    ),
    "models with n-gram embeddings are not served": ("engram-config",),
    _SLEEP: ("sleep-mode-backend", "sleep-mode-offload-cudagraph", "sleep-preserve-parameter-names"),
    _NO_COHERE: ("cohere-format", "cohere-is-reasoning-model"),
    _BALANCES: (
        *("data-parallel-supervisor-port", "dp-supervisor-probe-interval-s", "dp-supervisor-probe-timeout-s"),
        "dp-supervisor-probe-failure-threshold",
    ),
    "there is HTTP alone": ("grpc", "grpc-port"),
    "use --distributed-executor-backend ray": ("worker-use-ray",),
    _EXPERTS: ("enable-elastic-ep", "elastic-ep-max-dp-size", "num-redundant-experts"),
    "on CPUs, ranks are bound to nodes that can share them evenly; otherwise use numactl or taskset": (
        *("numa-bind", "numa-bind-nodes", "numa-bind-cpus"),
    ),
    "choose GPUs by the environment variable CUDA_VISIBLE_DEVICES": ("device-ids",),
    _WEIGHTS: (
        *("model-loader-extra-config", "ignore-patterns", "hf-config-path", "model-class-overrides", "model-weights"),
    ),
    "weights stay where they are computed": (
        *("offload-backend", "cpu-offload-params", "offload-group-size", "offload-num-in-group"),
        *("offload-prefetch-step", "offload-params", "enable-cumem-allocator"),
    ),
    "layers of the text model alone have adapters": (
        *("enable-tower-connector-lora", "default-mm-loras", "max-lora-cls-labels"),
    ),
    "each rank has its part of an adapter": ("fully-sharded-loras",),
    "an adapter says itself which layers it changes": ("lora-target-modules",),
    "no expert has an adapter": ("enable-mixed-moe-lora-format", "enable-moe-shared-loras"),
    "a step without adapters computes none": ("specialize-active-lora",),
    "adapters add no tokens: merge the adapter into its model": ("lora-extra-vocab-size",),
    "there are LoRA adapters alone": ("enable-prompt-adapter", "max-prompt-adapters", "max-prompt-adapter-token"),
    "use --speculative-config with the method ngram, or --num-speculative-tokens": (
        *("spec-model", "speculative-model", "ngram-prompt-lookup-max", "ngram-prompt-lookup-min"),
        *("speculative-draft-tensor-parallel-size", "per-request-spec-decode-metrics"),
    ),
    "llguidance compiles every constraint": ("guided-decoding-backend",),
    "use --reasoning-parser, which knows the markers": ("reasoning-config",),
    "use --hf-overrides": ("rope-scaling", "rope-theta"),
    "use --max-num-batched-tokens": ("max-num-scheduled-tokens",),
    "use --scheduling-policy, or an entry point of the group pyllm.policies": ("scheduler-cls",),
    "": (
        *("quantization-config", "allow-deprecated-quantization", "enable-return-routed-experts"),
        *("return-sampling-mask", "use-fp64-gumbel", "enable-trace-replay", "disable-sliding-window"),
        *(
            "enable-prompt-embeds",
            "worker-cls",
            "worker-extension-cls",
            "enable-fault-tolerance",
            "fault-tolerance-config",
        ),
        *("prefix-cache-retention-interval", "kv-cache-dtype-skip-layers", "kv-sharing-fast-prefill"),
        *("prefix-match-unit", "kv-cache-metrics-sample", "cudagraph-metrics", "enable-layerwise-nvtx-tracing"),
        *("enable-mfu-metrics", "enable-logging-iteration-details", "jit-monitor-mode", "jit-monitor-verbose"),
        *("scheduler-reserve-full-isl", "prefill-schedule-interval", "enable-bf16x3-router-gemm", "kernel-config"),
        *("additional-config", "weight-transfer-config", "aggregate-engine-logging"),
        *("fail-on-environ-validation", "calculate-kv-scales", "num-lookahead-slots", "preemption-mode"),
        *("max-seq-len-to-capture", "num-scheduler-steps", "scheduler-delay-factor", "use-v2-block-manager"),
        *("disable-frontend-multiprocessing", "enable-ssl-refresh", "h11-max-incomplete-event-size"),
        *("h11-max-header-count", "log-error-stack", "tool-server", "tokens-only"),
    ),
}


def explain_flag(name: str) -> str:
    """The explanation of a flag of vLLM that is no setting here; empty for other names. `name` is without hyphens."""
    flag = VLLM_FLAGS.get(name)
    if flag is not None:
        return flag.else_text or flag.text if flag.meaning != "ours" else ""
    for text, names in OTHERS.items():
        if name in names or name.removeprefix("no-") in names:
            return "it is vLLM's and has no meaning here" + (f": {text}" if text else "")
    return ""
