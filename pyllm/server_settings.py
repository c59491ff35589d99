"""What a server's flags amount to, checked before its processes start. Knows neither the engine nor the processes."""

import importlib.util
from pathlib import Path

import msgspec

from pyllm.api_keys import ApiKey, read_api_keys
from pyllm.config import ServerConfig
from pyllm.errors import ConfigError
from pyllm.process_config import SharedConfig
from pyllm.tls import tls_context

# Sequences that may wait by default: some tens of seconds of a busy server's work, and always enough for a burst.
QUEUE_PER_SEQUENCE = 16
LEAST_QUEUE = 256


def resolve_server(server: ServerConfig) -> tuple[ServerConfig, tuple[ApiKey, ...]]:
    """Absolute paths and the API keys; what an API process would stumble over is refused here.

    Raises:
        ConfigError: a file cannot be used, or a package is missing.
    """
    files = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "uds")
    paths = {name: str(Path(value).absolute()) for name in files if (value := getattr(server, name))}
    server = msgspec.structs.replace(server, **paths)
    tls_context(server)
    if server.otlp_traces_endpoint:
        if importlib.util.find_spec("opentelemetry") is None:
            raise ConfigError('otlp_traces_endpoint needs OpenTelemetry: pip install "pyllm[otel]"')
        if not server.otlp_traces_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_traces_endpoint {server.otlp_traces_endpoint!r} must be the URL of OTLP over HTTP, "
                "such as http://localhost:4318/v1/traces"
            )
    return server, read_api_keys(server.api_key_file)


def shared_config(server: ServerConfig, max_num_seqs: int) -> SharedConfig:
    """What the state that API processes share is told, of a core that runs so many sequences at once."""
    most = server.max_num_queued_reqs
    if most is None:
        most = max(LEAST_QUEUE, QUEUE_PER_SEQUENCE * max_num_seqs)
    return SharedConfig(
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=most,
        max_num_queued_tokens=server.max_num_queued_tokens,
        idempotency_retention=server.idempotency_retention,
        max_stored_responses=server.max_stored_responses,
    )
