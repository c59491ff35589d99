"""Open WebUI: conversations as its page has them, with titles and tools, over both of OpenAI's APIs; documents."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from checks import Servers, check, main, wait_until

OPEN_WEBUI = str(Path(sys.executable).with_name("open-webui"))
START = 180.0  # seconds, for its first start
TOOL = '''
class Tools:
    def weather(self, city: str) -> str:
        """
        The weather of a city.
        :param city: The city.
        """
        return f"It is 18 degrees in {city}."
'''


class OpenWebUi:
    """A server of the program, without accounts. The prefix `responses` is that of its second connection."""

    def __init__(self, servers: Servers) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        self._token = ""
        connection = {"enable": True, "prefix_id": "responses", "api_type": "responses"}
        settings = {
            "DATA_DIR": str(servers.folder / "data"),
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "none",
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URLS": f"{servers.scripted}/v1;{servers.scripted}/v1",
            "OPENAI_API_KEYS": "none;none",
            "OPENAI_API_CONFIGS": json.dumps({"1": connection}),
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_EMBEDDING_MODEL": "smol",
            "RAG_OPENAI_API_BASE_URL": f"{servers.model}/v1",
            "RAG_OPENAI_API_KEY": "none",
        }
        command = [OPEN_WEBUI, "serve", "--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(command, env={**os.environ, **settings}, cwd=servers.folder)
        wait_until(self._is_up, "Open WebUI", START)
        self._token = self.call("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def call(self, path: str, body: Any = None) -> Any:
        """The answer of a route: to a POST if there is a body, else to a GET."""
        return self._send(path, None if body is None else json.dumps(body).encode(), "application/json")

    def upload(self, name: str, text: str) -> str:
        """Put a document into its store; gives its id."""
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/plain'
        form = f"--x\r\n{head}\r\n\r\n{text}\r\n--x--\r\n".encode()
        return str(self._send("/api/v1/files/?process=true", form, "multipart/form-data; boundary=x")["id"])

    def converse(self, model: str, text: str, **extra: Any) -> tuple[str, str]:
        """Send a first message as the page does; returns the conversation's title and the answer."""
        asked, answered = str(uuid.uuid4()), str(uuid.uuid4())
        user = {"id": asked, "parentId": None, "childrenIds": [answered], "role": "user", "content": text}
        answer = {"id": answered, "parentId": asked, "childrenIds": [], "role": "assistant", "content": ""}
        history = {"messages": {asked: user, answered: answer}, "currentId": answered}
        chat = {"title": "New Chat", "models": [model], "history": history, "messages": [user, answer]}
        chat_id = self.call("/api/v1/chats/new", {"chat": chat})["id"]
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
        body |= {"chat_id": chat_id, "id": answered, "session_id": "page"}
        self.call("/api/chat/completions", {**body, "background_tasks": {"title_generation": True}, **extra})

        def found() -> tuple[str, dict[str, Any]]:
            shown = self.call(f"/api/v1/chats/{chat_id}")
            return shown["title"], shown["chat"]["history"]["messages"][answered]

        wait_until(lambda: found()[0] != "New Chat", "the title")
        title, message = found()
        assert message["done"], message
        return title, message["content"]

    def stop(self) -> None:
        """End it and wait."""
        self._process.terminate()
        self._process.wait(60)

    def _is_up(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        try:
            return bool(self.call("/health")["status"])
        except OSError:
            return False

    def _send(self, path: str, body: bytes | None, kind: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._address + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None


started: list[OpenWebUi] = []  # by the first check


@check
def models(servers: Servers) -> None:
    started.append(OpenWebUi(servers))
    names = {model["id"] for model in started[0].call("/api/models")["data"]}
    assert names == {"scripted", "responses.scripted"}, names
    connection = {"url": f"{servers.scripted}/v1", "key": "none"}
    assert started[0].call("/openai/verify", connection)["data"][0]["id"] == "scripted"


@check
def conversation(servers: Servers) -> None:
    for model in ("scripted", "responses.scripted"):
        assert started[0].converse(model, "Hi") == ("Weather in Paris", "Hello from the script.")


@check
def tool(servers: Servers) -> None:
    form = {"id": "weather", "name": "weather", "content": TOOL, "meta": {"description": "Weather."}}
    started[0].call("/api/v1/tools/create", form)
    for model in ("scripted", "responses.scripted"):
        options = {"tool_ids": ["weather"], "params": {"function_calling": "native"}}
        _, answer = started[0].converse(model, "What is the weather in Paris?", **options)
        assert "I look." in answer, answer
        assert answer.endswith("It is 18 degrees in Paris."), answer


@check
def settings(servers: Servers) -> None:
    params = {"temperature": 0.5, "top_k": 40, "min_p": 0.1, "repeat_penalty": 1.1, "seed": 3, "stop": ["zz"]}
    body = {"model": "scripted", "stream": False, "messages": [{"role": "user", "content": "Hi"}], "params": params}
    choice = started[0].call("/api/chat/completions", body)["choices"][0]
    assert choice["message"]["content"] == "Hello from the script."


@check
def document(servers: Servers) -> None:
    file = started[0].upload("moon.txt", "The moon is made of green cheese.")
    wait_until(lambda: started[0].call(f"/api/v1/files/{file}")["data"].get("status") == "completed", "the document")
    files = [{"type": "file", "id": file}]
    _, answer = started[0].converse("scripted", "What is the moon made of?", files=files)
    assert answer == "Of green cheese [1].", answer


main()
for server in started:
    server.stop()
