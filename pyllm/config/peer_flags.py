"""Flags of llama.cpp, Ollama, SGLang and TGI, with replacements. They are not accepted: some have another meaning here.

Sources: the `--help` of `llama-server`, `ollama run`, `sglang.launch_server` and `text-generation-launcher`. Reads no
command line.
"""

from collections.abc import Collection, Mapping

_ONE_DEVICE = "a model is on its device whole: --device cpu or --device cuda chooses it"
_KV_TYPE = "use --kv-cache-dtype, which is for keys and values alike"
_LENGTH = "use --max-model-len: prompt and output of one sequence; sequences share the KV cache, and none has a slot"
_STEP = "use --max-num-batched-tokens, the tokens of a step"
_THREADS = "--num-threads sets the threads of each rank; without it a rank takes all CPUs that the process may use"
_MAPPED = "weights are mapped from the file and packed: it needs no flag"
_NO_SAMPLER = "there is no such sampler: temperature, top_p, top_k, min_p and penalties of a request choose tokens"
_SAMPLING = "requests say it; --override-generation-config '{\"%s\": ...}' is for those that do not"
_ONE_MODEL = "a server has one model: start one `pyllm serve` for each"
_CHAT = 'use `pyllm chat MODEL`, or `pyllm complete MODEL "..."` for one answer'
_ADAPTERS = "use --enable-lora --lora-modules NAME=PATH, with a GGUF file, a folder of peft or a repository of the hub"
_NO_SCALES = "an adapter has its own scale: use --enable-lora --lora-modules NAME=PATH"
_TEXT_ONLY = "only text is served"
_NO_DRAFT_MODEL = "there is no draft model: --num-speculative-tokens drafts from the stream's own text"
_SPLIT = "use --tensor-parallel-size or --pipeline-parallel-size, which split a model evenly"
_ROPE = "use --hf-overrides, of a Hugging Face folder; a GGUF file's own values are taken"
_BUILT_IN = "it is always so here: leave it out"

# Spellings of flags by the replacement, which many share.
_FLAGS: Mapping[str, tuple[str, ...]] = {
    "name the model without a flag, as in `pyllm serve model.gguf`, or by --model": (
        "-m",
        "--model-path",
        "--model-id",
    ),
    "name the model without a flag, as in `pyllm serve owner/repo:Q4_K_M`": (
        *("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-dr", "--docker-repo"),
    ),
    "use --served-model-name": ("-a", "--alias"),
    _LENGTH: ("-c", "--ctx-size", "--num-ctx", "--num_ctx", "--n-ctx", "--context-length", "--max-total-tokens"),
    "use --max-model-len, which bounds prompt and output together": ("--max-input-tokens", "--max-input-length"),
    _ONE_DEVICE: (
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "--num-gpu", "-mg", "--main-gpu", "-dev", "-ncmoe", "--n-cpu-moe"),
        *("-cmoe", "--cpu-moe", "-ot", "--override-tensor", "-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"),
        *("-fit", "--fit"),
    ),
    _THREADS: ("-t", "--threads", "-tb", "--threads-batch", "-C", "--cpu-mask", "-Cr", "--cpu-range", "--num-thread"),
    "start it below `numactl`": ("--numa",),
    "use --max-num-seqs, the sequences that run at once": (
        *("-np", "--parallel", "--num-parallel", "--max-running-requests", "--max-batch-size"),
    ),
    _STEP: (
        *("-b", "--batch-size", "-ub", "--num-batch", "--chunked-prefill-size", "--max-prefill-tokens"),
        "--max-batch-prefill-tokens",
    ),
    "use --gpu-memory-utilization": ("--mem-fraction-static", "--cuda-memory-fraction"),
    "use --kv-cache-memory-bytes, the memory of all sequences' KV cache": ("--max-batch-total-tokens",),
    "use --tensor-parallel-size": ("--tp", "--tp-size", "--num-shard", "--sharded"),
    "use --pipeline-parallel-size": ("--pp", "--pp-size"),
    "use --data-parallel-size": ("--dp", "--dp-size"),
    "use --tokenizer": ("--tokenizer-path",),
    "use --scheduling-policy": ("--schedule-policy",),
    "sequences are preempted when the KV cache is full: nothing to tune": ("--schedule-conservativeness",),
    "use --max-num-queued-reqs": ("--max-queued-requests",),
    "use --seed": ("--random-seed",),
    "use --no-enable-prefix-caching": ("--disable-radix-cache",),
    "use --enforce-eager": ("--disable-cuda-graph",),
    "use --block-size": ("--page-size",),
    "use --hf-overrides": ("--json-model-override-args",),
    "use --quantization": ("--quantize",),
    "use --host": ("--hostname",),
    "use --log-format json": ("--json-output",),
    "use --otlp-traces-endpoint": ("--otlp-endpoint",),
    "use --allowed-origins": ("--cors-allow-origin",),
    "use --enable-log-requests": ("--log-requests",),
    "use --num-speculative-tokens": ("--speculate", "--speculative-num-draft-tokens"),
    "use --download-dir": ("--huggingface-hub-cache",),
    "set CUDA_VISIBLE_DEVICES": ("--base-gpu-id",),
    _MAPPED: ("--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io", "--no-repack", "--repack"),
    _KV_TYPE: ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
    _BUILT_IN: (
        *("-fa", "--flash-attn", "-cb", "--cont-batching", "--jinja", "--metrics", "--embedding", "--embeddings"),
        *("--cache-prompt", "--cache-reuse", "--webui", "--ui", "-kvu", "--kv-unified", "--warmup", "--no-warmup"),
        *("--no-context-shift", "--no-perf", "--perf", "--is-embedding", "--enable-metrics", "--grammar-backend"),
    ),
    "escapes belong to the shell or to JSON: a prompt is taken as it is": ("-e", "--escape", "--no-escape"),
    "a sequence ends at --max-model-len: nothing is shifted out": ("--context-shift", "--keep"),
    "layers with a window keep what the window needs": ("--swa-full",),
    "there are no slots: /metrics and the routes below /admin show what runs": ("--slots", "--no-slots", "--props"),
    "chat templates are always rendered with Jinja": ("--no-jinja",),
    "sequences are always batched continuously": ("-nocb", "--no-cont-batching"),
    "set HF_HUB_OFFLINE=1": ("--offline",),
    "the page is pyllm's own; a proxy can serve other files": ("--path",),
    "use --chat-template FILE": ("--chat-template-file",),
    "use --default-chat-template-kwargs": ("--chat-template-kwargs",),
    "use --reasoning-parser": ("--reasoning-format", "-rea", "--reasoning"),
    "use --kv-offloading-size": ("-cram", "--cache-ram", "--enable-hierarchical-cache", "--hicache-size"),
    "use --kv-cache-dir, which keeps the prefix cache on disk": ("--slot-save-path", "--prompt-cache"),
    "use --api-server-count, the processes that speak HTTP": ("--threads-http",),
    "use --request-timeout": ("-to", "--timeout"),
    "use --root-path": ("--api-prefix",),
    "use --ssl-keyfile": ("--ssl-key-file",),
    "use --ssl-certfile": ("--ssl-cert-file",),
    "use --disable-fastapi-docs, which leaves /docs out": ("--no-webui", "--no-ui"),
    _SAMPLING % "temperature": ("--temp", "--temperature"),
    _SAMPLING % "top_p": ("--top-p",),
    _SAMPLING % "top_k": ("--top-k",),
    _SAMPLING % "min_p": ("--min-p",),
    _SAMPLING % "repetition_penalty": ("--repeat-penalty",),
    _SAMPLING % "presence_penalty": ("--presence-penalty",),
    _SAMPLING % "frequency_penalty": ("--frequency-penalty",),
    "requests say it, as max_tokens": ("--max-tokens", "--predict", "--n-predict", "--num-predict"),
    "requests say it, as response_format or structured_outputs": (
        *("--grammar", "--grammar-file", "--format", "-j", "--json-schema", "-jf", "--json-schema-file"),
    ),
    "requests say it, as logit_bias": ("-l", "--logit-bias"),
    "requests say it, as ignore_eos": ("--ignore-eos",),
    "each sampler works by its own parameter; they have one order": ("--samplers", "--sampler-seq", "--sampling-seq"),
    _NO_SAMPLER: (
        *("--mirostat", "--mirostat-lr", "--mirostat-ent", "--typical", "--typical-p", "--top-nsigma", "--top-n-sigma"),
        *("--xtc-probability", "--xtc-threshold", "--dynatemp-range", "--dynatemp-exp", "--dry-multiplier"),
        *("--dry-base", "--dry-allowed-length", "--dry-penalty-last-n", "--dry-sequence-breaker"),
    ),
    "it is short for nothing here: use --seed": ("-s",),
    _CHAT: ("-p", "--prompt", "-cnv", "--conversation", "-i", "--interactive", "-f", "--file", "-sys"),
    "use `pyllm chat --system-prompt TEXT`; a server's clients send their own": ("--system-prompt", "--system"),
    _ADAPTERS: ("--lora", "--lora-paths", "--lora-adapters"),
    _NO_SCALES: ("--lora-scaled", "--lora-init-without-apply"),
    "there are no control vectors": ("--control-vector",),
    _TEXT_ONLY: (
        *("-mm", "--mmproj", "-mmu", "--mmproj-url", "--image", "--audio", "--no-mmproj", "--mmproj-auto"),
        *("--no-mmproj-auto", "--mmproj-offload", "--no-mmproj-offload", "--enable-multimodal"),
    ),
    _NO_DRAFT_MODEL: (
        *("-md", "--model-draft", "-hfd", "--hf-repo-draft", "-ngld", "-devd", "-cd", "--ctx-size-draft"),
        *("--draft", "--draft-max", "--draft-n", "--draft-min", "--draft-p-min", "--spec-type"),
        *("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min", "--spec-draft-p-split"),
        *("--spec-draft-model", "--spec-draft-hf", "--spec-draft-ngl", "--spec-draft-device", "--spec-draft-ctx-size"),
        *("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps"),
        "--speculative-eagle-topk",
    ),
    _SPLIT: ("-sm", "--split-mode", "-ts", "--tensor-split", "--rpc"),
    _ROPE: (
        *("--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"),
        *("--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast", "--rope-factor"),
    ),
    "use --hf-overrides, of a Hugging Face folder; nothing replaces a GGUF file's metadata": ("--override-kv",),
    _ONE_MODEL: ("--models-dir", "--models-max", "--models-preset"),
    "a model stays loaded until the server ends": ("--keepalive", "--keep-alive", "--sleep-idle-seconds"),
    "requests say it, as thinking_token_budget": ("--reasoning-budget",),
    "a reranker's files say that it is one, and POST /v1/rerank is there for all models": ("--rerank", "--reranking"),
    "the model's files say how embeddings pool": ("--pooling",),
    "use --enable-log-requests, or PYLLM_LOG_LEVEL=DEBUG": ("-v", "-lv", "--verbose", "--log-verbosity"),
    "set PYLLM_LOG_LEVEL=WARNING": ("--log-disable",),
    "stderr has the log: redirect it, or use --log-config-file": ("--log-file",),
}
PEER_FLAGS: Mapping[str, str] = {flag: text for text, flags in _FLAGS.items() for flag in flags}
# Spellings of flags by the flag of the same meaning, for commands that have it.
_SAME: Mapping[str, tuple[str, ...]] = {
    "--system-prompt": ("-sys", "--system"),
    "--quick": ("-p", "--prompt"),
    "--temperature": ("--temp",),
    "--max-tokens": ("--predict", "--n-predict", "--num-predict"),
    "--url": ("--base-url",),
}
_OWN = {flag: own for own, flags in _SAME.items() for flag in flags}


def explain_peer_flag(flag: str, known: Collection[str] = ()) -> str:
    """The replacement for a flag of a peer or of another command, spelled as written; empty for other flags.

    `known` are the flags of the command.
    """
    return f"use {_OWN[flag]}" if _OWN.get(flag) in known else PEER_FLAGS.get(flag, "")
