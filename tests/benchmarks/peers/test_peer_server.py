"""A server under measurement is ready before it is loaded, knows its model, and leaves nothing behind."""

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.peer_server import Server, per_second

# Answers like a completions server with one answer, and has a child of its own that outlives it.
PROGRAM = """
import http.server, json, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(200, json.dumps({"choices": [{"text": sys.argv[2]}]}).encode())
    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(folder: Path, answer: str) -> Server:
    return Server((sys.executable, "-c", PROGRAM, "{port}", answer), {"PYTHONUNBUFFERED": "1"}, folder / "log")


def test_it_is_ready_and_ends_with_all_its_children(tmp_path: Path) -> None:
    with server(tmp_path, " Paris, of course") as running:
        child = psutil.Process(int((tmp_path / "log").read_text().split()[0]))
        before = running.clocks()
        cores = per_second(before, running.clocks())
        assert running.ready_seconds > 0
        assert running.memory() > 0
        assert cores.server >= 0
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_one_that_knows_no_capital_is_refused_and_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="goes on after 'The capital of France is' with ' Rome'"):
        server(tmp_path, " Rome").__enter__()
    child = int((tmp_path / "log").read_text().split()[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_one_that_ends_says_where_its_words_are(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; print('no model'); sys.exit(3)")
    with pytest.raises(RuntimeError, match=r"ended with 3: see .*log"):
        Server(command, {}, tmp_path / "log").__enter__()
    assert (tmp_path / "log").read_text() == "no model\n"
