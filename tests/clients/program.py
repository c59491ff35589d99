"""One real program: its environment, its script of checks, and the scripted server that answers it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.clients.environment import HERE, PROGRAMS, Environment

# Enough for what the checks ask of the embedded model, and little memory.
MODEL_FLAGS = ("--served-model-name", "smol", "--kv-cache-memory-bytes", "512MiB")
LIMIT = 300.0  # seconds for all checks of one program
# Nothing listens there: what would leave this machine fails.
NOWHERE = "http://127.0.0.1:9"


@dataclass
class Outcome:
    """What one program's checks gave. `trouble` says why there are none, or not all; `log` is what it wrote."""

    name: str
    version: str = ""
    checks: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    log: str = ""

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The checks that did not hold."""
        return [check for check in self.checks if not check["ok"]]

    @property
    def is_good(self) -> bool:
        """Whether there were checks, and all of them held."""
        return bool(self.checks) and not self.failed and not self.trouble


class Program:
    """A program by its name: `programs/NAME.txt` are its packages, `NAME.py` its checks, `NAME.json` its answers.

    The model that gives these may have the chat `template` of another one.
    """

    def __init__(self, name: str, root: Path, template: Path | None = None) -> None:
        self.name = name
        self.template = template
        self.environment = Environment(name, root)
        self.record = root / "recorded" / f"{name}.jsonl"

    def run(self, model_address: str, upgrade: bool) -> Outcome:
        """Build its environment and run its checks."""
        outcome = Outcome(self.name)
        try:
            self.environment.build(upgrade)
            outcome.version = self.environment.version()
        except subprocess.CalledProcessError as error:
            outcome.trouble = f"no environment: {error}"
            return outcome
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.record.unlink(missing_ok=True)
        with TemporaryDirectory(prefix=f"clients-{self.name}-") as folder:
            self._check(model_address, Path(folder), outcome)
        return outcome

    def _check(self, model_address: str, folder: Path, outcome: Outcome) -> None:
        server = subprocess.Popen(self._server_command(), stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address, "the scripted server has not started"
            servers = {
                "model": model_address,
                "scripted": address,
                "start_scripted": self._server_command(),
                "start_model": [sys.executable, "-m", "pyllm", "serve", "--no-warm-spares", *MODEL_FLAGS],
                "python_path": os.pathsep.join(filter(None, sys.path)),
                "folder": str(folder),
            }
            self._run_script(json.dumps(servers), folder, outcome)
        finally:
            server.terminate()
            server.wait()

    def _run_script(self, servers: str, folder: Path, outcome: Outcome) -> None:
        command = [str(self.environment.python), "-P", str(PROGRAMS / f"{self.name}.py"), servers]
        with subprocess.Popen(
            command,
            env=self._variables(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                outcome.log = process.communicate(timeout=LIMIT)[0]
            except subprocess.TimeoutExpired:
                _kill_session(process.pid)
                outcome.log = process.communicate()[0]
                outcome.trouble = f"not finished after {LIMIT:g} s"
            finally:
                _kill_session(process.pid)
        outcome.checks = [json.loads(line) for line in outcome.log.splitlines() if line.startswith('{"check": ')]
        if process.returncode and not outcome.trouble:
            outcome.trouble = f"exit code {process.returncode}"

    def _server_command(self) -> list[str]:
        script = PROGRAMS / f"{self.name}.json"
        answers = ["--script", str(script)] if script.is_file() else []
        answers += ["--template", str(self.template)] if self.template else []
        return [sys.executable, "-m", "tests.clients.scripted_server", *answers, "--record", str(self.record)]

    def _variables(self, folder: Path) -> dict[str, str]:
        """The program's own home, and no way to anything but this machine."""
        return {
            "PATH": f"{self.environment.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(HERE / "inside"),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "OPENAI_API_KEY": "none",
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1,localhost",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }


def _kill_session(leader: int) -> None:
    """End what a program has started and left running; its group bears its leader's number."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
