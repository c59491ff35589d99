"""The settings of the HTTP server, and of a core without one. Opens no socket."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pyllm.config import plugins
from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.config.option_texts import parse_hosts, parse_origins

# vLLM's names of parsers; those in one line read the same format.
TOOL_CALL_PARSERS = (
    *("auto", "none"),
    *("hermes", "granite4"),
    *("qwen3_coder", "qwen3_xml", "mimo", "step3p5"),
    *("functiongemma", "gemma4", "granite", "openai", "mistral", "phi4_mini_json", "minimax_m2", "seed_oss"),
    *("glm45", "glm47", "ling3"),
    *("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "kimi_k2", "hy_v3", "minimax", "minimax_m3"),
    *("apertus", "apriel", "functionary_v3_1", "gigachat3", "lfm2", "nemotron_json"),
    *("llama3_json", "llama4_json"),
    *("pythonic", "llama4_pythonic", "olmo3"),
    *("cohere_command3", "cohere_command4"),
)
REASONING_PARSERS = (
    *("auto", "none"),
    *("think", "qwen3", "deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "holo2", "kimi_k2", "ling3"),
    *("mimo", "minimax_m2", "nemotron_v3", "olmo3", "step3", "step3p5"),
    *("apertus", "apriel", "hy_v3", "minimax_m3"),
    *("gemma4", "granite", "mistral", "openai_gptoss", "seed_oss"),
    *("cohere_command3", "cohere_command4"),
)
UnknownFields = Literal["warn", "refuse", "ignore"]


def _tool_parser(name: str) -> str:
    plugins.find_entry_point("tool parser", name, plugins.TOOL_PARSERS, TOOL_CALL_PARSERS)
    return name


def _reasoning_parser(name: str) -> str:
    plugins.find_entry_point("reasoning parser", name, plugins.REASONING_PARSERS, REASONING_PARSERS)
    return name


# Defaults of the server's flags that the shared state needs, too.
IDEMPOTENCY_RETENTION = 600.0
MAX_STORED_RESPONSES = 1000


# Variables of a chat template that a request cannot set, or sets by a field of its own.
RESERVED_TEMPLATE_VARIABLES = frozenset(
    {
        *("add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "documents", "eos_token"),
        *("messages", "reasoning_effort", "tokenize", "tools"),
    }
)


class ServerConfig(ConfigPart, frozen=True):
    """The HTTP server and its supervision."""

    host: Annotated[str, Meta(description="address to listen on", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 picks a free one", ge=0, le=65535)] = 8000
    shutdown_timeout: Annotated[
        float, Meta(description="seconds that running streams get to finish after SIGTERM or SIGINT", ge=0)
    ] = 30.0
    ready_timeout: Annotated[float, Meta(description="most seconds until a process is ready", gt=0)] = 600.0
    curve_keys: Annotated[
        str,
        Meta(description="folder with keys for the tcp:// addresses of cores that POST /admin/cores adds"),
        TextForm(metavar="FOLDER"),
    ] = ""
    insecure_tcp: Annotated[
        bool, Meta(description="let POST /admin/cores add cores at tcp:// without keys: others may read what is sent")
    ] = False
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
        TextForm(parse=_tool_parser),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="how the model marks its reasoning: auto (as its chat template shows), none, think "
            "(<think>...</think>), granite, openai_gptoss and more (docs/tools.md), or an entry point of the group "
            "pyllm.reasoning_parsers"
        ),
        TextForm(parse=_reasoning_parser),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        dict[str, Any],
        Meta(description="variables of the chat template for requests without them, as '{\"enable_thinking\": false}'"),
    ] = msgspec.field(default_factory=dict)
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
    ssl_certfile: Annotated[str, Meta(description="certificate chain in PEM, for TLS"), TextForm(metavar="FILE")] = ""
    ssl_keyfile: Annotated[
        str, Meta(description="private key in PEM; default: in the file of --ssl-certfile"), TextForm(metavar="FILE")
    ] = ""
    ssl_ca_certs: Annotated[
        str,
        Meta(description="CA certificates in PEM; clients must then have a certificate that these have signed"),
        TextForm(metavar="FILE"),
    ] = ""
    ssl_cert_reqs: Annotated[
        Annotated[int, Meta(ge=0, le=2)] | None,
        Meta(
            description="certificates of clients: 0 not asked for, 1 checked if there is one, 2 required; default: 2 "
            "with --ssl-ca-certs"
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="origins whose pages may use the server (CORS): https://a.com,... or *"),
        TextForm(parse=parse_origins),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="names that requests may have in their Host header: llm.example.com,...; default: any, but "
            "without keys only names of this machine for requests of a browser"
        ),
        TextForm(parse=parse_hosts),
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
        TextForm(is_repeated=True),
    ] = ()
    disable_fastapi_docs: Annotated[bool, Meta(description="serve neither /docs nor /openapi.json")] = False
    api_key: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="keys that the server takes; others on this machine can see them, so prefer --api-key-file"),
        TextForm(num_words="+", is_secret=True),
    ] = ()
    api_key_file: Annotated[
        str,
        Meta(description="JSON or TOML file of API keys, made by `pyllm apikey NAME`; PYLLM_API_KEY may hold one, too"),
        TextForm(metavar="FILE"),
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
    max_request_body_bytes: Annotated[
        int, Meta(description="largest body of a request, for example 16MiB", ge=1), TextForm(size_unit=1)
    ] = 10_000_000
    disable_log_stats: Annotated[
        bool, Meta(description="do not log throughput, queue and cache every 10 s while requests run")
    ] = False
    access_log: Annotated[
        bool, Meta(description="log each request's method, path, status, seconds and id; not those of probes")
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


class HeadlessConfig(ConfigPart, frozen=True):
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
