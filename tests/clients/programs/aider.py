"""aider: it edits a file as the model says, and it answers a question."""

import os
import sys
from pathlib import Path

from checks import Servers, check, main, run

AIDER = str(Path(sys.executable).with_name("aider"))
FLAGS = [
    "--yes-always",
    "--no-git",
    "--no-check-update",
    "--no-show-model-warnings",
    "--no-pretty",
    "--analytics-disable",
]


def aider(servers: Servers, *arguments: str) -> str:
    """Run the command; gives what it wrote."""
    environment = {**os.environ, "OPENAI_API_BASE": f"{servers.scripted}/v1"}
    command = [AIDER, "--model", "openai/scripted", *FLAGS, *arguments]
    code, output = run(command, environment, servers.folder)
    assert code == 0, output
    return output


@check
def edit(servers: Servers) -> None:
    file = servers.folder / "greeting.py"
    file.write_text('print("hello")\n')
    output = aider(servers, "--edit-format", "diff", "--message", "Say goodbye instead of hello.", "greeting.py")
    assert file.read_text() == 'print("goodbye")\n', output


@check
def question(servers: Servers) -> None:
    output = aider(servers, "--chat-mode", "ask", "--no-stream", "--message", "Hi")
    assert "Hello from the script." in output


main()
