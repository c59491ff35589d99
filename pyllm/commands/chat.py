"""`pyllm chat`: a conversation in the terminal, with a server or with an engine in this process tree."""

import argparse
import asyncio

from pyllm.commands.source_arguments import add_source_arguments, only_warnings, read_source, select_source
from pyllm.flags.settings_flags import SettingsParser

PARSER = SettingsParser
USAGE = "pyllm chat [MODEL or URL] [--FLAG VALUE ...]"
COMMON = ("system-prompt", "quick", "url", "api-key", "model-name", "max-model-len", "kv-cache-memory-bytes")
EXAMPLES = """examples:
  pyllm chat                                      the server on port 8000, or else the embedded model
  pyllm chat Qwen/Qwen3-0.6B --max-model-len 8k   a model of the Hugging Face hub, computed by this program
  pyllm chat http://gpu-server:8000               a server; OPENAI_API_KEY is its key
  pyllm chat -q "Name three colours."             one message

/help in the chat lists its commands."""


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    add_source_arguments(parser)
    group = parser.add_argument_group("chat", "What the chat begins with.")
    group.conflict_handler = "resolve"  # `-q` is as in `vllm chat`, not the engine's.
    group.add_argument("--system-prompt", metavar="TEXT", default="", help="what the model is told first")
    group.add_argument("-q", "--quick", metavar="TEXT", default="", help="answer this message, and end")
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Chat until the user ends it; return the exit code."""
    from pyllm.terminal_chat.chat_loop import chat
    from pyllm.terminal_chat.terminal_text import whole

    with only_warnings("pyllm::chat"):
        source = select_source(options, *read_source(options))
        return asyncio.run(chat(source, whole(options.system_prompt), whole(options.quick)))
