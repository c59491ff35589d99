"""The command line: `pyllm serve`, `core`, `pull`, `models`, `rm` and more. Flags come from `config/options.py`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from pyllm import __version__
from pyllm.config.api_keys import Role
from pyllm.config.options import (
    SIZES,
    WORDS,
    EngineConfig,
    HeadlessConfig,
    ServerConfig,
    config_part,
    engine_config,
    option_names,
)
from pyllm.errors import ConfigError, PyllmError

HUB_NAME_HELP = "owner/repo, owner/repo:Q4_K_M, owner/repo@revision or owner/repo/file.gguf"
MODEL_HELP = f"GGUF file, Hugging Face folder, or a model of the hub: {HUB_NAME_HELP}"

_STDERR_FILENO = 2
_INTERRUPTED = 130  # what a shell gives a command that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; a usage error exits with 2, any other error of ours prints and gives 1."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["_child"]:
        from pyllm.launch import entrypoints

        return entrypoints.child_main(arguments[1], *map(int, arguments[2:]))
    _open_standard_files()
    if arguments[:1] and arguments[0].startswith("--") and arguments[0] not in ("--help", "--version"):
        arguments.insert(0, "serve")  # `python -m pyllm --model X`, as people are used to
    options = make_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except PyllmError as error:
        print(f"pyllm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # Before a server runs, which takes the signal itself: mostly during a download.
        print("pyllm: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code


def _open_standard_files() -> None:
    """Where stdin, stdout or stderr were closed, a socket of ours would get the number, and children would lose it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR_FILENO:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pyllm", description="An inference engine for large language models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    # No abbreviations: a misspelt flag must fail, and `--max-num-seq` is not to be guessed.
    serve = commands.add_parser("serve", allow_abbrev=False, help="an OpenAI-compatible HTTP server")
    _add_model_argument(serve)
    _add_flags(serve, ServerConfig)
    _add_engine_flags(serve)
    serve.set_defaults(run=_serve)

    core = commands.add_parser("core", allow_abbrev=False, help="a headless EngineCore for EngineClient")
    _add_model_argument(core)
    _add_flags(core, HeadlessConfig)
    _add_engine_flags(core)
    core.set_defaults(run=_core)

    pull = commands.add_parser("pull", allow_abbrev=False, help="download a model of the Hugging Face hub")
    pull.add_argument("name", metavar="NAME", help=HUB_NAME_HELP)
    pull.set_defaults(run=_pull)

    models = commands.add_parser("models", allow_abbrev=False, help="list the models on this machine")
    models.add_argument("--json", action="store_true", help="print JSON instead of a table")
    models.set_defaults(run=_models)

    rm = commands.add_parser("rm", allow_abbrev=False, help="delete a downloaded model")
    rm.add_argument("name", metavar="NAME", help=HUB_NAME_HELP)
    rm.set_defaults(run=_rm)

    keygen = commands.add_parser("keygen", allow_abbrev=False, help="make CURVE keys for tcp://")
    keygen.add_argument("folder", type=Path)
    keygen.set_defaults(run=_keygen)

    apikey = commands.add_parser("apikey", allow_abbrev=False, help="make an API key, shown once, and its entry")
    apikey.add_argument("name", metavar="NAME", help="whose key it is: the tenant of its requests")
    apikey.add_argument(
        "--role", choices=get_args(Role), default="user", help="admin: may also use the routes below /admin"
    )
    apikey.set_defaults(run=_apikey)

    replay = commands.add_parser("replay", allow_abbrev=False, help="repeat a recording of --scheduler-recording")
    replay.add_argument("recording", type=Path, metavar="FILE")
    replay.set_defaults(run=_replay)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from pyllm.launch import serve

    return serve.serve(_engine(options), config_part(ServerConfig, _given(options, option_names(ServerConfig))))


def _core(options: argparse.Namespace) -> int:
    from pyllm.launch import serve

    return serve.serve_core(
        _engine(options), config_part(HeadlessConfig, _given(options, option_names(HeadlessConfig)))
    )


def _pull(options: argparse.Namespace) -> int:
    from pyllm import models_command

    return models_command.pull(options.name)


def _models(options: argparse.Namespace) -> int:
    from pyllm import models_command

    return models_command.list_models(options.json)


def _rm(options: argparse.Namespace) -> int:
    from pyllm import models_command

    return models_command.remove_model(options.name)


def _keygen(options: argparse.Namespace) -> int:
    from pyllm.wire import curve

    curve.generate(options.folder)
    print(f"{options.folder}: keep server.key_secret with the core; give clients server.key and client.key_secret")
    return 0


def _apikey(options: argparse.Namespace) -> int:
    from pyllm.config.api_keys import new_key

    key, entry = new_key(options.name, options.role)
    print(f"key, shown only now: {key}")
    print(f'entry for "keys" of the file that --api-key-file names: {entry}')
    return 0


def _replay(options: argparse.Namespace) -> int:
    from pyllm.core.replay import replay_file

    print(json.dumps(replay_file(options.recording), indent=2))
    return 0


def _engine(options: argparse.Namespace) -> EngineConfig:
    given = _given(options, option_names())
    if options.model_argument is not None:
        given["model"] = options.model_argument
    elif "model" not in given and _may_hold_model(names := given.get("served_model_name", ())):
        raise ConfigError(f"{names[-1]} was read as a name of --served-model-name; give the model first, or by --model")
    return engine_config(given)


def _may_hold_model(names: Sequence[str]) -> bool:
    """Whether the last of several names may be the model, which the flag before it took."""
    return len(names) > 1 and ("/" in names[-1] or Path(names[-1]).exists())


def _given(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    for field in msgspec.structs.fields(EngineConfig):
        _add_flags(parser, field.type)


def _add_flags(parser: argparse.ArgumentParser, kind: type[msgspec.Struct]) -> None:
    """One flag for each field; the default stays None here, for the struct's own default to hold."""
    group = parser.add_argument_group(kind.__name__.removesuffix("Config").lower())
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint, help_text = hints[field.name], ""
        while get_origin(hint) is Annotated:
            hint, *metadata = get_args(hint)
            help_text = next((meta.description for meta in metadata if meta.description), help_text)
        flag = "--" + field.name.replace("_", "-")
        default = field.default if field.default_factory is msgspec.NODEFAULT else None
        help_text += "" if default in (None, "", ()) else f" (default: {default})"
        if hint is bool or bool in get_args(hint):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        elif get_origin(hint) is Literal:
            group.add_argument(flag, choices=get_args(hint), help=help_text)
        elif field.name in WORDS:
            group.add_argument(flag, nargs="+", metavar="TEXT", help=help_text)
        elif hint is str or get_origin(hint) in {dict, tuple}:
            group.add_argument(flag, metavar="TEXT", help=help_text)
        else:
            number = str if field.name in SIZES else float if hint is float else int
            group.add_argument(flag, type=number, metavar="N", help=help_text)
