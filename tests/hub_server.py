"""A small Hugging Face hub on this machine: the part of its API that huggingface_hub uses for models.

`python -m tests.hub_server owner/repo=FOLDER ...` serves until it is ended, to try commands by hand.
"""

import hashlib
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass
class Repository:
    """Files by name; `revisions` are those beside `main`, as names of the one commit that there is."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(
            b"".join(name.encode() + content for name, content in sorted(self.files.items()))
        ).hexdigest()


@dataclass
class HubServer:
    """Serves `repositories`; the switches may be changed while it runs."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_secret"  # opens gated and private repositories
    cut_after: int | None = None  # bytes of the next large answer, after which the connection closes; once
    bytes_per_second: int = 0  # 0: no limit
    status: int = 200  # another one: every answer
    page: bytes = b""  # if not empty: every answer, as a hotel's network sends it
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            server_state = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name: str, folder: Path, **switches: Any) -> Repository:
        """Serve the files of a folder."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repositories[name] = Repository(files, **switches)
        return self.repositories[name]

    def downloaded(self) -> list[str]:
        """The files whose content was sent, in order."""
        return [
            path.partition("/resolve/")[2].partition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


class _Handler(BaseHTTPRequestHandler):
    server_state: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        hub = self.server_state
        if urlsplit(self.path).path == "/api/models":
            self._search()
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.removeprefix("/api/models").strip("/").split("/")]
        hub.requests.append((self.command, unquote(urlsplit(self.path).path), self.headers.get("Range", "")))
        owner, name, _, revision, *rest = [*parts, "revision", "main"][: max(4, len(parts))]
        repository = hub.repositories.get(f"{owner}/{name}", Repository({}, private=True))
        if error := self._error(repository, revision, "/".join(rest)):
            self._send(*error)
        elif self.path.startswith("/api/models/"):
            self._send(200, json.dumps(_info(f"{owner}/{name}", repository)).encode())
        else:
            self._send_file(repository.files["/".join(rest)], repository.commit)

    def _search(self) -> None:
        hub = self.server_state
        if hub.page or hub.status != 200:
            self._send(hub.status, hub.page, {"Content-Type": "text/html"})
            return
        asked = dict(parse_qsl(urlsplit(self.path).query))
        found = [
            {
                "id": name,
                "downloads": len(repository.files),
                "likes": 1,
                "tags": sorted(_formats(repository)),
                "x": None,
            }
            for name, repository in hub.repositories.items()
            if asked["search"] in name and asked.get("filter", "") in {"", *_formats(repository)}
        ]
        found.sort(key=lambda model: -model["downloads"])
        self._send(200, json.dumps(found[: int(asked["limit"])]).encode())

    def _error(self, repository: Repository, revision: str, file: str) -> tuple[int, bytes, dict[str, str]] | None:
        hub = self.server_state
        may_read = bool(repository.files) and self.headers.get("Authorization") == f"Bearer {hub.token}"
        if hub.page or hub.status != 200:
            return hub.status, hub.page, {"Content-Type": "text/html"}
        if repository.private and not may_read:
            return 401, b"{}", {"X-Error-Code": "RepoNotFound"}
        if revision not in {*repository.revisions, repository.commit}:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        if file and repository.gated and not may_read:
            return 401, b"{}", {"X-Error-Code": "GatedRepo"}
        if file and file not in repository.files:
            return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        return None

    def _send_file(self, content: bytes, commit: str) -> None:
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        begin, _, status = 0, len(content), 200
        if asked := self.headers.get("Range"):
            begin, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(status, content[begin:], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        hub = self.server_state
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.cut_after is not None and len(body) > hub.cut_after:
            body, hub.cut_after, self.close_connection = body[: hub.cut_after], None, True
        step = hub.bytes_per_second // 10 or len(body) or 1
        for begin in range(0, len(body), step):
            self.wfile.write(body[begin : begin + step])
            if hub.bytes_per_second:
                time.sleep(0.1)


def _formats(repository: Repository) -> set[str]:
    return {file.rpartition(".")[2] for file in repository.files} & {"gguf", "safetensors"}


def _info(name: str, repository: Repository) -> dict[str, Any]:
    siblings = [{"rfilename": file, "size": len(content)} for file, content in sorted(repository.files.items())]
    return {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "gated": repository.gated}


if __name__ == "__main__":
    with HubServer() as served:
        for argument in sys.argv[1:]:
            if argument.startswith("speed="):
                served.bytes_per_second = int(argument.removeprefix("speed="))
            else:
                repository_name, _, place = argument.partition("=")
                served.add(repository_name, Path(place))
        print(served.endpoint, flush=True)
        threading.Event().wait()
