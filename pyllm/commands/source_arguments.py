"""Arguments that name the source of answers: a model with engine settings, or a server. Opens neither."""

import argparse
import contextlib
import os
from collections.abc import Iterator

from pyllm import log
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.flags.engine_arguments import print_notices, read_settings
from pyllm.flags.settings_flags import SettingsParser, add_engine_settings, add_vllm_flags
from pyllm.flags.trust_flags import add_trust_flags, trust_of
from pyllm.terminal_chat.source_selection import SourceRequest
from pyllm.wire.server_address import server_key

MODEL_OR_URL_HELP = (
    "a model as in pyllm serve, or the address of a server, such as http://127.0.0.1:8000; without it the server on "
    "http://127.0.0.1:8000 if there is one, else the embedded model"
)


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


def source_request(options: argparse.Namespace) -> SourceRequest:
    """The source that the arguments name. Flags without an effect are listed on stderr.

    Raises:
        ConfigError: the model is named twice, or a setting is wrong.
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
    return SourceRequest(
        name=names[0] if names else "",
        api_key=server_key(options.server_key),
        model_name=options.model_name or "",
        options=settings,
        trust=trust_of(options),
    )


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
