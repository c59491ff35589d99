import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging, sys
from pyllm import log
from pyllm.config.engine_settings import LogConfig
log.configure("tool", LogConfig(log_config_file=sys.argv[1]), may_wait=True)
logging.getLogger("pyllm.x").info("quiet")
logging.getLogger("pyllm.x").warning("loud")
"""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"version": 1, "loggers": {"pyllm.x": {"level": "WARNING"}}}', ""),
        ("{", "no configuration of Python's logging"),
        ('{"version": 2}', "no configuration of Python's logging"),
        ('{"version": 1, "loggers": {"x": {"level": "LOUD"}}}', "LOUD"),
    ],
)
def test_a_file_configures_the_log(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "log.json"
    file.write_text(content)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(file)], capture_output=True, text=True, check=False)
    assert text in done.stderr
    assert ("loud" in done.stderr, "quiet" in done.stderr) == (not text, False)


@pytest.mark.parametrize("command", ["serve", "core --bind ipc:///nowhere/core"])
def test_a_wrong_setting_is_a_record_of_a_json_log(command: str) -> None:
    arguments = [*command.split(), "--log-format", "json", "--max-model-len", "-5"]
    done = subprocess.run([sys.executable, "-m", "pyllm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["failed"]


def test_a_json_log_on_a_terminal_has_nothing_but_json() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "pyllm", "serve", "/nowhere", "--log-format", "json"]
    assert subprocess.run(command, stderr=theirs, check=False).returncode == 2
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        said = terminal.read(1 << 16)
    assert [json.loads(line)["event"] for line in said.splitlines()] == ["failed"]


def test_a_child_goes_on_when_the_logs_file_is_broken_since_its_parent_read_it(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_text("{")
    script = SCRIPT.replace("log.configure(", "log.configure_child(")
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "no configuration of Python's logging" in done.stderr
    assert "loud" in done.stderr
