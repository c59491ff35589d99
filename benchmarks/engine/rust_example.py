"""The examples of the scheduler's crate, as programs that a benchmark runs."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(name: str) -> str | None:
    """Build an example for release and return its path; None, and a line on stderr, without cargo."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--message-format=json"]
    command += ["--package", "pyllm-scheduler", "--example", name]
    try:
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no figures of the example {name}: cargo did not build it ({error})", file=sys.stderr)
        return None
    messages = [json.loads(line) for line in result.stdout.splitlines()]
    (program,) = [message["executable"] for message in messages if is_example(message, name)]
    return str(program)


def is_example(message: dict[str, object], name: str) -> bool:
    """Whether this is cargo's message about the finished program."""
    target = message.get("target")
    return bool(message.get("executable")) and isinstance(target, dict) and target["name"] == name
