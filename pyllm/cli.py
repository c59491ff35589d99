"""The command line: finds a command, reads its arguments and runs it. The commands are in `pyllm/commands`."""

import argparse
import importlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyllm import __version__
from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.flags.command_line import expand, split_config
from pyllm.flags.command_parser import PATHS, CommandParser, nearest


class Command(msgspec.Struct, frozen=True):
    """A command: its module has `add_arguments(parser)` and `run(options)`, which returns the exit code.

    The module may have `PARSER`, its own parser class, and `TAKES_CONFIG`. `help` is its line in the list of commands.
    """

    module: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "serve": Command("pyllm.commands.serve", "a model over HTTP: OpenAI's API, Anthropic's and Ollama's"),
    "core": Command("pyllm.commands.core", "a headless core for EngineClient, without HTTP"),
    "chat": Command("pyllm.commands.chat", "a conversation in the terminal, with a model or a server"),
    "run": Command("pyllm.commands.run", "a chat with a model, or an answer to a prompt, as `ollama run`"),
    "complete": Command("pyllm.commands.complete", "one completion, for pipes"),
    "bench": Command("pyllm.commands.bench", "measure a server or an engine, compare two"),
    "batch": Command("pyllm.commands.run_batch", "a file of requests in OpenAI's batch format"),
    "check": Command("pyllm.commands.check", "what this machine can do, what a model needs, what is wrong"),
    "models": Command("pyllm.commands.models", "list the models on this machine"),
    **dict.fromkeys(("list", "ls"), Command("pyllm.commands.models", "the same as models")),
    "show": Command("pyllm.commands.show", "what a model is and can do, as `ollama show`"),
    "ps": Command("pyllm.commands.ps", "the models that a server has loaded"),
    "stop": Command("pyllm.commands.stop", "have a server unload a model"),
    "search": Command("pyllm.commands.search", "find models on the Hugging Face hub"),
    "pull": Command("pyllm.commands.pull", "download a model of the Hugging Face hub"),
    "rm": Command("pyllm.commands.rm", "delete a downloaded model"),
    "keygen": Command("pyllm.commands.keygen", "make CURVE keys for tcp://"),
    "apikey": Command("pyllm.commands.apikey", "make an API key, shown once, and its entry"),
    "replay": Command("pyllm.commands.replay", "repeat a recording of the scheduler"),
}
# Commands of Ollama, llama.cpp, vLLM and hf, and their equivalents here.
OTHERS_COMMANDS: Mapping[str, str] = {
    "info": "`pyllm show MODEL` says what a model is, and `pyllm check MODEL` what it needs",
    **dict.fromkeys(("kill", "down"), "Ctrl-C in its terminal, or SIGTERM, ends a server"),
    **dict.fromkeys(("start", "up", "server", "llama-server"), "`pyllm serve MODEL` starts a server"),
    "create": "what a Modelfile sets are flags of `pyllm serve`: --chat-template and --override-generation-config",
    **dict.fromkeys(
        ("cp", "push", "signin", "signout"), "models are those of the Hugging Face hub, or files: `hf` copies them"
    ),
    "download": "`pyllm pull MODEL` downloads a model",
    **dict.fromkeys(("remove", "delete"), "`pyllm rm MODEL` deletes a downloaded model"),
    **dict.fromkeys(("generate", "completion", "llama-cli"), "`pyllm complete` writes what follows a prompt"),
    "run-batch": "`pyllm batch -i FILE -o FILE` answers a file of requests",
    **dict.fromkeys(("collect-env", "env", "doctor"), "`pyllm check` says what this machine can do"),
    "llama-bench": "`pyllm bench` measures a server or an engine",
    "quantize": "llama.cpp's llama-quantize makes GGUF files; pyllm serve reads them",
    **dict.fromkeys(("version", "help"), "write --version or --help"),
}
SHELLS = ("bash", "zsh")
EXAMPLES = """examples:
  pyllm serve                                   the embedded model on http://127.0.0.1:8000
  pyllm serve Qwen/Qwen3-0.6B --port 8001       a model of the Hugging Face hub
  pyllm chat                                    a conversation in the terminal
  pyllm check                                   what this machine can do, and what is wrong
  pyllm batch -i in.jsonl -o out.jsonl          answers to a file of requests
  pyllm models --available                      models by short names, and which of them fit here
  pyllm --print-completion bash > ~/.local/share/bash-completion/completions/pyllm

pyllm COMMAND --help says more."""

_STDERR_FILENO = 2
_FAILED, _USAGE_ERROR = 1, 2
_INTERRUPTED = 130  # a shell's code for a command that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for wrong arguments, settings and requests, 1 for other PyllmErrors."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):  # Escape characters that it cannot encode, as stderr does.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except (ConfigError, RequestError) as error:
        _say(error)
        return _USAGE_ERROR
    except PyllmError as error:
        _say(error)
        return _FAILED
    except BrokenPipeError:  # The reader of the output has ended, such as `head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except KeyboardInterrupt:  # mostly during a download: a running server handles the signal itself
        print("pyllm: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _say(error: PyllmError) -> None:
    """Print an error as the last line, or log it as the last record if the log is JSON."""
    from pyllm.supervision.json_log import is_json

    if is_json():
        logging.getLogger(__name__).error("%s", error, extra={"fields": {"event": "failed"}})
    else:
        print(f"pyllm: {error}", file=sys.stderr)


def make_parser(name: str) -> CommandParser:
    """The parser of one command."""
    module = importlib.import_module(COMMANDS[name].module)
    kind: type[CommandParser] = getattr(module, "PARSER", CommandParser)
    text = COMMANDS[name].help
    return _with_arguments(kind(prog=f"pyllm {name}", description=f"{text[:1].upper()}{text[1:]}."), module)


def _run(arguments: list[str]) -> int:
    top = _top_parser()
    flag = arguments[0].split("=")[0] if arguments else ""
    if flag == "-m" or (flag.startswith("--") and flag not in top.flags() and not nearest(flag, top.flags())):
        arguments.insert(0, "serve")  # `python -m pyllm --model X`, a common habit
    if not arguments or arguments[0].startswith("-"):
        options = top.read(arguments)
        if options.print_completion:
            print(_completion(options.print_completion), flush=True)
            return 0
        top.error("name a command; pyllm --help lists them")
    name, *rest = arguments
    if name not in COMMANDS:
        instead = OTHERS_COMMANDS.get(name)
        hint = f": {instead}" if instead else nearest(name, COMMANDS)
        top.error(f"there is no command {name!r}{hint} (pyllm --help lists all)")
    code: int = importlib.import_module(COMMANDS[name].module).run(read_options(name, rest))
    return code


def read_options(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    """A command's options; those of a `--config` file come first, so that the command line overrides them.

    Exits with 2 if the arguments are wrong.

    Raises:
        ConfigError: a nested setting or the file cannot be read.
    """
    parser = make_parser(name)
    if not getattr(importlib.import_module(COMMANDS[name].module), "TAKES_CONFIG", False):
        return parser.read(expand(arguments))
    file, settings, words = split_config(expand(arguments))
    options, model_of_file = None, None
    if file:
        parser.source = file
        required = [action for action in parser._actions if action.required]
        for action in required:
            action.required = False
        options = parser.read(expand(settings))
        for action in required:  # The command line must have what the file lacks.
            action.required = getattr(options, action.dest) is None
        parser.source = ""
        if options.model_argument is not None:  # A file has no positional argument: use `model: NAME`.
            raise ConfigError(f"--config {file}: {options.model_argument!r:.80} is no flag's value, as in `port: 8000`")
        for option, value in vars(options).items():
            if isinstance(value, list):
                setattr(options, option, tuple(value))
        # A positional MODEL on the command line overrides it, too, like --model.
        model_of_file, options.model = options.model, None
    options = parser.read(words, options)
    if options.model is None and options.model_argument is None:
        options.model = model_of_file
    return options


def _top_parser() -> CommandParser:
    parser = CommandParser(
        prog="pyllm", usage="pyllm COMMAND [ARGUMENTS]", description="An inference engine for large language models."
    )
    parser.add_argument("--version", action="version", version=__version__, help="show the version")
    parser.add_argument("--print-completion", choices=SHELLS, metavar="SHELL", help=f"print it for {', '.join(SHELLS)}")
    group = parser.add_argument_group("commands")
    for name, command in COMMANDS.items():
        group.add_argument(dest=name, nargs="?", metavar=name, help=command.help)
    parser.epilog = EXAMPLES
    return parser


def _completion(shell: str) -> str:
    """The completion script for commands and flags in this shell."""
    import shtab

    parser = CommandParser(prog="pyllm")
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        _with_arguments(commands.add_parser(name, help=command.help), module)
    _complete_paths(parser, shtab.FILE)
    return str(shtab.complete(parser, shell=shell))


def _complete_paths(parser: CommandParser, how: Any) -> None:
    """Set the completion of all arguments that are paths, also in nested commands."""
    for action in parser._actions:
        if action.metavar in PATHS:
            action.complete = how  # type: ignore[attr-defined]  # shtab's interface
    for nested in parser.commands().values():
        _complete_paths(nested, how)


def _with_arguments(parser: CommandParser, module: Any) -> CommandParser:
    module.add_arguments(parser)
    return parser


def _open_standard_files() -> None:
    """Open /dev/null for closed stdin, stdout or stderr: otherwise a socket gets the number, and breaks in children."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR_FILENO:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
