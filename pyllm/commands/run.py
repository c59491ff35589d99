"""`pyllm run`: Ollama's way to chat with a model, or to ask it one question. It is `pyllm chat` with a prompt."""

import argparse
import sys

from pyllm.commands import chat
from pyllm.commands.complete import CompletionParser
from pyllm.errors import ConfigError

PARSER = CompletionParser
USAGE = "pyllm run MODEL or URL [PROMPT] [--FLAG VALUE ...]"
EXAMPLES = """examples:
  pyllm run qwen3:4b                       a chat
  pyllm run qwen3:4b "Why is the sky blue?"
  cat report.txt | pyllm run llama3.2 "Summarise this:"

A prompt and text from a pipe are one question, the text last."""


def add_arguments(parser: CompletionParser) -> None:
    """Declare the command's arguments."""
    chat.add_arguments(parser)
    parser.usage = USAGE
    parser.add_argument("prompt_words", nargs="*", metavar="PROMPT", help="ask this, and end (default: a chat)")
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Chat, or answer the prompt; return the exit code.

    Raises:
        ConfigError: no model is named, or there are two prompts.
    """
    if options.model_argument is None and options.url is None and options.model is None:
        raise ConfigError("name the model, such as `pyllm run qwen3:4b`; `pyllm models --available` lists short names")
    prompt = " ".join(options.prompt_words)
    if prompt and options.quick:
        raise ConfigError("--quick and the PROMPT are both a question: leave one out")
    piped = "" if sys.stdin.isatty() else _read_pipe()
    options.quick = "\n\n".join(filter(None, (prompt or options.quick, piped)))
    return chat.run(options)


def _read_pipe() -> str:
    from pyllm.terminal_chat.terminal_text import open_stdin

    return open_stdin().read().strip()
