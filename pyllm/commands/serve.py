"""`pyllm serve`: a model over HTTP. Takes vLLM's command lines, too."""

import argparse
from pathlib import Path

from pyllm import log
from pyllm.config.catalogue_settings import CatalogueConfig
from pyllm.config.engine_settings import LogConfig
from pyllm.config.option_reading import config_part
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.flags.catalogue_file import catalogue_of, read_catalogue
from pyllm.flags.engine_arguments import MODEL_HELP, announce, read_engine, read_settings, say_start
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)

PARSER = SettingsParser
TAKES_CONFIG = True
USAGE = "pyllm serve [MODEL ...] [--FLAG VALUE ...] [--config FILE]"
# The flags that people set first, as `docs/serving.md` has them.
COMMON = (
    *("host", "port", "api-key-file", "served-model-name", "max-model-len", "max-num-seqs"),
    *("kv-cache-memory-bytes", "gpu-memory-utilization", "tensor-parallel-size", "data-parallel-size", "config"),
)
EXAMPLES = """examples:
  pyllm serve                                     the embedded model on http://127.0.0.1:8000
  pyllm serve Qwen/Qwen3-0.6B --port 8001         a model of the Hugging Face hub
  pyllm serve model.gguf --max-model-len 8k       a file, with a shorter context
  pyllm serve --config server.yaml                flags from a file; the command line wins
  pyllm serve --help=scheduler                    help on a group, a flag or a word

Flags are vLLM's where vLLM has the thing; docs/vllm-flags.md lists what becomes of each."""


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("other_models", nargs="*", metavar="MODEL", help="more models: a catalogue (docs/catalogue.md)")
    # `split_config` reads it before all others; declared here for the help.
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags and values: max-model-len: 4096")
    add_settings(parser, ServerConfig)
    add_settings(parser, CatalogueConfig)
    add_engine_settings(parser)
    add_vllm_flags(parser)
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    # First, so that errors in the settings are records in a JSON log, too.
    log.configure("pyllm::serve", config_part(LogConfig, given_settings(options, LogConfig)))
    bounds = config_part(CatalogueConfig, given_settings(options, CatalogueConfig))
    server = config_part(ServerConfig, given_settings(options, ServerConfig))
    if bounds.models or options.other_models:
        return _serve_catalogue(options, bounds, server)
    engine, notices = read_engine(options)
    say_start(engine)
    announce(notices)

    from pyllm.launch import serve as launcher  # Slow to import.

    return launcher.serve(engine, server)


def _serve_catalogue(options: argparse.Namespace, bounds: CatalogueConfig, server: ServerConfig) -> int:
    models = [options.model_argument, *options.other_models] if options.model_argument else []
    options.model_argument = None
    shared, notices = read_settings(options)
    if given := [name for name in ("model", "served_model_name") if shared.get(name)]:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for one model; a catalogue has names of its own")
    if bounds.models and models:
        raise ConfigError(f"--models {bounds.models} and {models[0]} both say which models: leave one out")
    catalogue = read_catalogue(Path(bounds.models), shared) if bounds.models else catalogue_of(models, shared)
    announce(notices)

    from pyllm.launch.serve_catalogue import serve_catalogue

    return serve_catalogue(catalogue, bounds, shared, server)
