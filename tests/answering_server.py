"""A server in a thread that answers everything, for commands that run in this process."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

MODELS = b'{"data": [{"id": "m"}]}'


class AnsweringServer:
    """Gives each POST the same text; keeps the keys and bodies that it was sent. Over TLS with `files` for it.

    Each GET has the answer `models`, with a `status`; their keys are kept apart.
    """

    def __init__(
        self, files: tuple[str, str] | None = None, text: str = "hi", models: bytes = MODELS, status: int = 200
    ) -> None:
        choice = {"index": 0, "text": text, "delta": {"content": text}, "finish_reason": "stop"}
        answer = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1}}).encode()
        self.keys: list[str | None] = []
        self.keys_of_gets: list[str | None] = []
        self.bodies: list[Any] = []
        keys, keys_of_gets, bodies = self.keys, self.keys_of_gets, self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys_of_gets.append(self.headers.get("Authorization"))
                self._answer(models, status=status)

            def do_POST(self) -> None:
                keys.append(self.headers.get("Authorization"))
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bodies.append(body)
                if body.get("stream"):
                    self._answer(b"data: " + answer + b"\n\ndata: [DONE]\n\n", "text/event-stream")
                else:
                    self._answer(answer)

            def log_message(self, *args: object) -> None:
                pass

            def _answer(self, content: bytes, kind: str = "application/json", status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"{'http' if files is None else 'https'}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
