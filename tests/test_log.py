import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from pyllm.log import JsonFormatter

SCRIPT = """
import logging, sys
from pyllm import log
from pyllm.config.engine_settings import LogConfig
log.configure("tool", LogConfig(log_config_file=sys.argv[1]), may_wait=True)
logging.getLogger("pyllm.x").info("quiet")
logging.getLogger("pyllm.x").warning("loud")
"""


def test_a_record_is_a_json_object() -> None:
    record = logging.LogRecord("pyllm.x", logging.INFO, "x.py", 1, "request %s: \n%s", ("r-1", "🙂"), None)
    record.created, record.request_id = 0.5, "r-1"
    line = JsonFormatter("pyllm::api-0").format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "INFO",
        "process": "pyllm::api-0",
        "logger": "pyllm.x",
        "message": "request r-1: \n🙂",
        "request_id": "r-1",
    }


def test_an_exception_is_in_its_record() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "oh", (), sys.exc_info())
    line = json.loads(JsonFormatter("p").format(record))
    assert line["exception"].endswith("ValueError: broken")
    assert "request_id" not in line


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
