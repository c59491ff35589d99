"""`pyllm run`: Ollama's way to chat with a model, or to ask it one question. It is `pyllm chat` with a prompt."""

import argparse
import asyncio
import os
import stat

from pyllm.commands.chat import add_arguments as add_chat_arguments
from pyllm.commands.complete import CompletionParser
from pyllm.commands.source_arguments import only_warnings, read_source, select_source
from pyllm.errors import ConfigError

PARSER = CompletionParser
USAGE = "pyllm run MODEL or URL [PROMPT] [--FLAG VALUE ...]"
EXAMPLES = """examples:
  pyllm run qwen3:4b                       a chat
  pyllm run qwen3:4b "Why is the sky blue?"
  cat report.txt | pyllm run llama3.2 "Summarise this:"

A prompt and text from a pipe are one question, the text last."""

_STDIN_FILENO = 0


def add_arguments(parser: CompletionParser) -> None:
    """Declare the command's arguments."""
    add_chat_arguments(parser)
    parser.usage = USAGE
    parser.add_argument("prompt_words", nargs="*", metavar="PROMPT", help="ask this, and end (default: a chat)")
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Chat, or answer the prompt; return the exit code.

    Raises:
        ConfigError: no model is named, or there are two prompts.
    """
    from pyllm.terminal_chat.chat_loop import chat
    from pyllm.terminal_chat.terminal_text import whole

    name, settings = read_source(options)
    if not name:
        raise ConfigError("name the model, such as `pyllm run qwen3:4b`; `pyllm models --available` lists short names")
    prompt = " ".join(options.prompt_words)
    if prompt and options.quick:
        raise ConfigError("--quick and the PROMPT are both a question: leave one out")
    with only_warnings("pyllm::run"):
        source = select_source(options, name, settings)
        question = "\n\n".join(filter(None, (prompt or options.quick, _piped())))
        return asyncio.run(chat(source, whole(options.system_prompt), whole(question)))


def _piped() -> str:
    """The text of a pipe or a file that is standard input; a terminal and /dev/null have none."""
    from pyllm.terminal_chat.terminal_text import open_stdin

    is_device = stat.S_ISCHR(os.fstat(_STDIN_FILENO).st_mode)
    return "" if is_device else open_stdin().read().strip()
