"""`pyllm complete`: one completion for pipes, by a server or by an engine in this process tree."""

import argparse
import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from pyllm.commands.source_arguments import add_source_arguments, only_warnings, read_source, select_source
from pyllm.errors import ConfigError, RequestError
from pyllm.flags.settings_flags import SettingsParser

USAGE = "pyllm complete [MODEL or URL] [PROMPT] [--FLAG VALUE ...]"
COMMON = (
    *("chat", "max-tokens", "temperature", "top-p", "seed", "stop", "n", "json-schema"),
    *("url", "api-key", "model-name", "max-model-len"),
)
MAX_TOKENS = 256  # of a completion, which may never end by itself
EXAMPLES = """examples:
  pyllm complete "The capital of France is" --max-tokens 8 --temperature 0
  git diff | pyllm complete --chat Qwen/Qwen3-0.6B > summary.txt
  pyllm complete http://gpu-server:8000 --chat --json-schema person.json "Invent a person." | jq .name

A single word is the prompt, unless it is an address, a file or like owner/repo. Without a prompt it is read from
stdin, less the end of its last line.

exit codes: 0 done, 1 failed (also: JSON cut off at --max-tokens), 2 wrongly asked, 130 interrupted"""

_MODEL = re.compile(r"(/|\./|\.\./|~).*|.*://.*|.*\.gguf|[\w.-]+/[\w.-]+([/:@][\w./@:-]+)?", re.IGNORECASE)


class CompletionParser(SettingsParser):
    """Accepts flags between the model and the prompt."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse flags and positional arguments in any order. argparse calls this method again, for the flags alone."""
        if self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    _is_intermixed = False


PARSER = CompletionParser


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    add_source_arguments(parser)
    parser.add_argument("prompt_argument", nargs="?", metavar="PROMPT", help="the text to continue (default: stdin)")
    group = parser.add_argument_group("answer", "What is answered, and how.")
    group.conflict_handler = "resolve"  # `--seed` is the answer's, not the engine's.
    group.add_argument("--chat", action="store_true", help="send the prompt as a user's message to an assistant")
    length = f"most tokens (default: {MAX_TOKENS}; with --chat as many as fit)"
    group.add_argument("--max-tokens", type=int, metavar="N", help=length)
    group.add_argument("--temperature", type=float, metavar="T", help="0: the likeliest token each time")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens of this probability")
    group.add_argument("--seed", type=int, dest="answer_seed", metavar="N", help="makes the answer repeatable")
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends the answer before it; may be repeated")
    group.add_argument("-n", "--n", type=int, metavar="N", help="number of answers, printed one after another")
    group.add_argument("--json-schema", metavar="FILE", help="the answer is JSON of this schema")
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Print the completion; return the exit code."""
    from pyllm.terminal_chat.completion import print_completion
    from pyllm.terminal_chat.terminal_text import whole

    options.model_argument, prompt = split_arguments(options)
    fields = _fields(options)
    name, settings = read_source(options)
    given = _read_prompt() if prompt is None else prompt
    if not given:
        raise ConfigError("the prompt is empty")
    prompt = whole(given)
    if prompt != given:
        print("pyllm: bytes of the prompt that are not UTF-8 were replaced by \ufffd", file=sys.stderr)
    with only_warnings("pyllm::complete"):
        source = select_source(options, name, settings)
        asyncio.run(print_completion(source, prompt, fields, options.chat))
    return 0


def split_arguments(options: argparse.Namespace) -> tuple[str | None, str | None]:
    """The model and the prompt; None for one that is not given. A single argument may be either."""
    first, second = options.model_argument, options.prompt_argument
    if second is not None or first is None:
        return first, second
    has_source = options.url is not None or options.model is not None
    is_word = first != "" and not re.search(r"\s", first)
    is_model = not has_source and is_word and (_MODEL.fullmatch(first) or Path(first).exists())
    return (first, None) if is_model else (None, first)


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    from pyllm.terminal_chat.answers import checked

    names = ("temperature", "top_p", "max_tokens", "stop", "n")
    fields = {name: getattr(options, name) for name in names} | {"seed": options.answer_seed}
    if options.max_tokens is None and not options.chat:
        fields["max_tokens"] = MAX_TOKENS
    if options.json_schema is not None:
        fields["response_format"] = _format(Path(options.json_schema))
    try:
        return checked(fields)
    except RequestError as error:
        raise ConfigError(str(error)) from None


def _format(path: Path) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read --json-schema {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--json-schema {path} is no JSON schema: {error}") from None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _read_prompt() -> str:
    from pyllm.terminal_chat.terminal_text import open_stdin

    if sys.stdin.isatty():
        raise ConfigError("there is no prompt: give it behind the model, or by a pipe")
    return open_stdin().read().removesuffix("\n")
