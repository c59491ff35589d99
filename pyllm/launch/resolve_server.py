"""Checks the settings of a server before its processes start, and makes their configuration. Knows no model."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pyllm.config.api_keys import flag_keys, read_api_keys
from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.process_config import SharedConfig
from pyllm.config.server_settings import RESERVED_TEMPLATE_VARIABLES, ServerConfig
from pyllm.config.tls import tls_context
from pyllm.errors import ConfigError
from pyllm.machine.extras import is_installed, missing_extra
from pyllm.wire.curve import client_keys

# Default queue limits: some tens of seconds of a busy server's work, and always enough for a burst.
QUEUE_PER_SEQUENCE = 16
LEAST_QUEUE = 256


def resolve_server(server: ServerConfig) -> tuple[ServerConfig, Credentials]:
    """Make paths absolute, read API keys and certificate, and refuse settings on which an API process would fail.

    Raises:
        ConfigError: a file cannot be used, or a package is missing.
    """
    files = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "uds", "curve_keys")
    paths = {name: str(Path(value).absolute()) for name in files if (value := getattr(server, name))}
    fixed_keys = read_api_keys("") + flag_keys(server.api_key)
    # From here on, and in crash records, keys are replaced by their hashes.
    server = msgspec.structs.replace(server, **paths, api_key=(), root_path=_root_path(server.root_path))
    credentials = read_credentials(server, fixed_keys)
    tls_context(server, credentials)
    if server.curve_keys:
        client_keys(Path(server.curve_keys))
    if server.allow_credentials and (not server.allowed_origins or "*" in server.allowed_origins):
        raise ConfigError("allow_credentials needs --allowed-origins by name: with * any page could use them")
    if reserved := sorted(RESERVED_TEMPLATE_VARIABLES & set(server.default_chat_template_kwargs)):
        raise ConfigError(
            f"default_chat_template_kwargs: {reserved[0]} is set by the server or by a field of a request"
        )
    for name in server.middleware:
        if not name.replace(":", ".").rpartition(".")[0]:
            raise ConfigError(f"the middleware {name!r} must be module.Class")
    if server.otlp_traces_endpoint:
        if not is_installed("opentelemetry"):
            raise ConfigError(f"otlp_traces_endpoint is set, and {missing_extra('otel', 'opentelemetry')}")
        if not re.match(r"https?://[^/]", server.otlp_traces_endpoint):
            raise ConfigError(
                "otlp_traces_endpoint must be the URL of OTLP over HTTP, such as http://localhost:4318/v1/traces"
            )
    return server, credentials


def _root_path(text: str) -> str:
    """A path with a slash in front and none at the end; empty for none."""
    path = text.strip().strip("/")
    if not re.fullmatch(r"[\w.~/-]*", path, re.ASCII):
        raise ConfigError(f"root_path must be a path such as /llm, got {text!r:.80}")
    return f"/{path}" if path else ""


def shared_config(server: ServerConfig, max_num_seqs: int, core_addresses: Sequence[str] = ("",)) -> SharedConfig:
    """The configuration of the state that API processes share, for cores of `max_num_seqs` sequences each."""
    total, most = len(core_addresses) * max_num_seqs, server.max_num_queued_reqs
    return SharedConfig(
        core_addresses=tuple(core_addresses),
        max_num_seqs=total,
        max_num_queued_reqs=max(LEAST_QUEUE, QUEUE_PER_SEQUENCE * total) if most is None else most,
        scales_queue=most is None,
        max_num_queued_tokens=server.max_num_queued_tokens,
        idempotency_retention=server.idempotency_retention,
        max_stored_responses=server.max_stored_responses,
    )
