"""Selects the source of answers: the named server or model; without a name, a server on this machine's port 8000."""

from collections.abc import Mapping
from typing import Any

import httpx2
import msgspec

from pyllm.errors import ConfigError
from pyllm.terminal_chat.answer_source import AnswerSource
from pyllm.terminal_chat.server_source import ServerSource
from pyllm.wire.server_trust import ServerTrust

LOCAL_SERVER = "http://127.0.0.1:8000"

_LOOK_SECONDS = 1.0
_HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})


class SourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requested source. `name` is a model, an address or empty; `options` are for an engine in this program.

    `api_key`, `trust` and `model_name`, one of its models, are for a server.
    """

    name: str = ""
    api_key: str = ""
    model_name: str = ""
    options: Mapping[str, Any] = {}
    trust: ServerTrust = ServerTrust()


def select_source(request: SourceRequest, local_server: str = LOCAL_SERVER) -> AnswerSource:
    """The requested source, not started. May take the time of a download.

    A key is sent only to a server that was named.

    Raises:
        ConfigError: the name, the model or an option is invalid.
    """
    if is_address(request.name):
        if request.options:
            flags = ", ".join(f"--{option.replace('_', '-')}" for option in request.options)
            raise ConfigError(
                f"{flags}: settings of an engine do nothing for the server {request.name}; leave them out"
            )
        return ServerSource(request.name, request.api_key, request.model_name, trust=request.trust)
    if request.trust.is_given:
        raise ConfigError("--cacert and --insecure are for a server: give its address, such as https://127.0.0.1:8000")
    if request.model_name:
        raise ConfigError("--model-name is for a server: give its address, such as http://127.0.0.1:8000")
    if not request.name and not request.options and serves_models(local_server):
        return ServerSource(local_server)
    from pyllm.terminal_chat.engine_source import EngineSource

    return EngineSource(request.name, request.options)


def is_address(name: str) -> bool:
    """Whether a name is a server's address, which has a scheme; the address of a model on the hub is none.

    Raises:
        ConfigError: the scheme is neither http nor https.
    """
    scheme, separator, rest = name.partition("://")
    if rest.partition("/")[0].lower().removeprefix("www.") in _HUB_HOSTS:
        return False
    if separator and scheme.lower() not in {"http", "https"}:
        raise ConfigError(f"{name}: a server's address begins with http:// or https://")
    return bool(separator)


def serves_models(address: str) -> bool:
    """Whether a server at the address lists models without a key."""
    try:
        response = httpx2.get(f"{address}/v1/models", timeout=_LOOK_SECONDS, trust_env=False)
        models = response.json()["data"] if response.status_code == httpx2.codes.OK else []
        return bool(models) and all(isinstance(model["id"], str) for model in models)
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return False
