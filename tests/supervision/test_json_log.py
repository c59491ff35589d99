"""Records of a JSON log, and how lines of children become such."""

import json
import logging
import subprocess
import sys

import pytest

from pyllm.supervision.json_log import JsonFormatter

FORWARDING = """
import sys
from pyllm import log
from pyllm.supervision import json_log
from pyllm.config.engine_settings import LogConfig
log.configure("tool", LogConfig(log_format=sys.argv[1]), may_wait=True)
json_log.forward("core 0", b'{"message": "of its own"}\\nFatal Python error: Aborted\\n\\n  File "x.py"\\n')
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


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_of_a_child_that_are_no_json_become_records_of_a_json_log(form: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORWARDING, form], capture_output=True, text=True, check=True)
    if form == "text":
        assert done.stderr.endswith('{"message": "of its own"}\nFatal Python error: Aborted\n\n  File "x.py"\n')
        return
    own, crash = map(json.loads, done.stderr.splitlines())
    assert own == {"message": "of its own"}
    expected = ("ERROR", "core 0", 'Fatal Python error: Aborted\n\n  File "x.py"')
    assert (crash["level"], crash["process"], crash["message"]) == expected
