"""The source of answers that arguments name: a model with engine settings, or a server.

Without a name it is a server on this machine's port 8000, if there is one, else the embedded model.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pyllm import log
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.flags.engine_arguments import print_notices, read_settings
from pyllm.flags.settings_flags import SettingsParser, add_engine_settings, add_vllm_flags
from pyllm.flags.trust_flags import add_trust_flags, trust_of
from pyllm.wire.server_address import server_key

if TYPE_CHECKING:
    from pyllm.terminal_chat.chat_session import AnswerSource

LOCAL_SERVER = "http://127.0.0.1:8000"
MODEL_OR_URL_HELP = (
    f"a model as in pyllm serve, or the address of a server, such as {LOCAL_SERVER}; without it the server on "
    f"{LOCAL_SERVER} if there is one, else the embedded model"
)

_LOOK_SECONDS = 1.0
_HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})


def add_source_arguments(parser: SettingsParser) -> None:
    """Arguments of a server, and the settings of an engine in this process tree."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_OR_URL_HELP)
    group = parser.add_argument_group("server", "A server that answers, instead of an engine inside.")
    group.add_argument("--url", metavar="URL", help="its address; the same as in place of MODEL")
    text = "its key (default: OPENAI_API_KEY of the environment)"
    group.add_argument("--api-key", dest="server_key", metavar="KEY", help=text)
    group.add_argument("--model-name", metavar="NAME", help="which of its models (default: the first)")
    add_trust_flags(group)
    add_engine_settings(parser)
    add_vllm_flags(parser)


def read_source(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The name of a model or a server, which may be empty, and the settings of an engine, both checked.

    Settings without an effect are listed on stderr.

    Raises:
        ConfigError: the model is named twice, a setting is wrong, or a flag is not for such a source.
    """
    names = [name for name in (options.model_argument, options.url, options.model) if name is not None]
    if len(names) > 1:
        raise ConfigError(f"{names[0]} and {names[1]} both say what answers: name one")
    if "" in names:
        raise ConfigError("the MODEL or --url is empty: name one, or leave it out")
    settings, notices = read_settings(options)
    settings.pop("model", None)
    engine_config(settings)  # Before anything is opened.
    print_notices(notices)
    name = names[0] if names else ""
    if is_address(name) and settings:
        flags = ", ".join(f"--{setting.replace('_', '-')}" for setting in settings)
        raise ConfigError(f"{flags}: settings of an engine do nothing for the server {name}; leave them out")
    if not is_address(name) and (options.cacert or options.insecure):
        raise ConfigError("--cacert and --insecure are for a server: give its address, such as https://127.0.0.1:8000")
    if not is_address(name) and options.model_name:
        raise ConfigError(f"--model-name is for a server: give its address, such as {LOCAL_SERVER}")
    return name, settings


def select_source(
    options: argparse.Namespace, name: str, settings: Mapping[str, Any], local_server: str = LOCAL_SERVER
) -> "AnswerSource":
    """The source of what `read_source` gave, not started. May take the time of a download.

    A key is sent only to a server that was named.

    Raises:
        ConfigError: the address, the model or the key is invalid.
    """
    from pyllm.terminal_chat.server_source import ServerSource

    if is_address(name):
        return ServerSource(name, server_key(options.server_key), options.model_name or "", trust=trust_of(options))
    if not name and not settings and serves_models(local_server):
        return ServerSource(local_server)
    from pyllm.terminal_chat.engine_source import EngineSource

    return EngineSource(name, settings)


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
    import httpx2

    from pyllm.wire.server_client import model_names

    try:
        response = httpx2.get(f"{address}/v1/models", timeout=_LOOK_SECONDS, trust_env=False)
        return response.status_code == httpx2.codes.OK and bool(model_names(response.content))
    except (httpx2.HTTPError, msgspec.DecodeError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def only_warnings(process: str) -> Iterator[None]:
    """Log warnings and errors only, in this process and those that it starts, unless PYLLM_LOG_LEVEL is set.

    Raises:
        ConfigError: PYLLM_LOG_LEVEL is not a log level.
    """
    is_set = "PYLLM_LOG_LEVEL" in os.environ
    os.environ.setdefault("PYLLM_LOG_LEVEL", "WARNING")  # The processes inherit it.
    try:
        log.configure(process)
        yield
    finally:
        if not is_set:
            del os.environ["PYLLM_LOG_LEVEL"]
