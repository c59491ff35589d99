"""Open WebUI: what its pages do, over both of OpenAI's APIs and Ollama's: conversations, tools, documents, models."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checks import Servers, check, main, wait_until

OPEN_WEBUI = str(Path(sys.executable).with_name("open-webui"))
START = 180.0  # seconds, for its first start
# The same model over its three connections.
MODELS = ("scripted", "responses.scripted", "scripted:latest")
# A GIF of one pixel.
PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
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
    """A server of the program, without accounts. The prefix `responses` is that of its second connection.

    Its third one speaks Ollama's API, where the model has a tag.
    """

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
            "ENABLE_OLLAMA_API": "True",
            "OLLAMA_BASE_URLS": servers.scripted,
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

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """The answer of a route: to a POST if there is a body, else to a GET, unless the method is given."""
        return self._send(path, None if body is None else json.dumps(body).encode(), "application/json", method)

    def ask(self, model: str, content: Any, **extra: Any) -> str:
        """The answer to one message that belongs to no conversation."""
        body = {"model": model, "stream": False, "messages": [{"role": "user", "content": content}], **extra}
        return str(self.call("/api/chat/completions", body)["choices"][0]["message"]["content"])

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

    def _send(self, path: str, body: bytes | None, kind: str, method: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._address + path, body, headers, method=method)
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
    assert names == {*MODELS}, names
    connection = {"url": f"{servers.scripted}/v1", "key": "none"}
    assert started[0].call("/openai/verify", connection)["data"][0]["id"] == "scripted"
    assert started[0].call("/ollama/verify", {"url": servers.scripted, "key": "none"})["version"]


@check
def conversation(servers: Servers) -> None:
    for model in MODELS:
        assert started[0].converse(model, "Hi") == ("Weather in Paris", "Hello from the script.")


@check
def tool(servers: Servers) -> None:
    form = {"id": "weather", "name": "weather", "content": TOOL, "meta": {"description": "Weather."}}
    started[0].call("/api/v1/tools/create", form)
    for model in MODELS:
        options = {"tool_ids": ["weather"], "params": {"function_calling": "native"}}
        _, answer = started[0].converse(model, "What is the weather in Paris?", **options)
        assert "I look." in answer, answer
        assert answer.endswith("It is 18 degrees in Paris."), answer


@check
def tool_by_a_prompt(servers: Servers) -> None:
    options = {"tool_ids": ["weather"], "params": {"function_calling": "legacy"}}
    for model in MODELS:
        _, answer = started[0].converse(model, "What is the weather in Paris?", **options)
        assert answer == "It is 18 degrees in Paris.", answer


@check
def settings(servers: Servers) -> None:
    params = {"temperature": 0.5, "top_k": 40, "min_p": 0.1, "repeat_penalty": 1.1, "seed": 3, "stop": ["zz"]}
    assert started[0].ask("scripted", "Hi", params=params) == "Hello from the script."
    sizes = {"num_ctx": 4096, "num_predict": 64, "num_keep": 24, "num_batch": 512, "num_thread": 4, "num_gpu": 1}
    others = {"use_mmap": True, "use_mlock": False, "keep_alive": "5m", "think": True}
    assert started[0].ask("scripted:latest", "Hi", params=params | sizes | others) == "Hello from the script."
    # The page sends a format as a text.
    answer = started[0].ask("scripted:latest", "Name a city.", params={"format": json.dumps(SCHEMA)})
    assert json.loads(answer) == {"city": "Paris"}
    told = refusal(lambda: started[0].ask("scripted:latest", "Hi", params={"mirostat": 2, "mirostat_tau": 5}))
    assert "options.mirostat is not supported" in told, told


@check
def model_of_ones_own(servers: Servers) -> None:
    params = {"system": "You are Bob.", "max_tokens": 64, "stop": ["zz"], "keep_alive": "10m", "num_ctx": 4096}
    form = {"id": "bob", "base_model_id": "scripted:latest", "name": "Bob", "meta": {}, "params": params}
    started[0].call("/api/v1/models/create", form)
    assert "bob" in {model["id"] for model in started[0].call("/api/models?refresh=true")["data"]}
    _, answer = started[0].converse("bob", "Who are you?", params={"function_calling": "legacy"})
    assert answer == "I am Bob.", answer


@check
def document(servers: Servers) -> None:
    _ask_a_document("moon.txt", "scripted")
    form: dict[str, Any] = {"RAG_EMBEDDING_ENGINE": "ollama", "RAG_EMBEDDING_MODEL": "scripted:latest"}
    form |= {"ollama_config": {"url": servers.scripted, "key": ""}}
    started[0].call("/api/v1/retrieval/embedding/update", form)
    _ask_a_document("again.txt", "scripted:latest")


def _ask_a_document(name: str, model: str) -> None:
    file = started[0].upload(name, "The moon is made of green cheese.")
    wait_until(lambda: started[0].call(f"/api/v1/files/{file}")["data"].get("status") == "completed", "the document")
    files = [{"type": "file", "id": file}]
    _, answer = started[0].converse(model, "What is the moon made of?", files=files)
    assert answer == "Of green cheese [1].", answer


@check
def picture(servers: Servers) -> None:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    for model in MODELS:
        told = refusal(lambda model=model: started[0].ask(model, content))  # type: ignore[misc]
        assert "not supported" in told, told


@check
def admin_page(servers: Servers) -> None:
    call, named = started[0].call, {"model": "scripted:latest"}
    assert call("/ollama/api/version")["version"] == call("/ollama/api/version/0")["version"]
    assert [model["model"] for model in call("/ollama/api/ps")["models"]] == ["scripted:latest"]
    assert [model["model"] for model in call("/ollama/api/tags/0")["models"]] == ["scripted:latest"]
    assert "completion" in call("/ollama/api/show", named)["capabilities"]
    assert call("/ollama/api/pull", named) == {"status": "success"}
    assert "model 'nope' not found" in refusal(lambda: call("/ollama/api/pull/0", {"name": "nope"}))
    assert call("/ollama/api/unload", named) == {"status": True}
    assert "is being served" in refusal(lambda: call("/ollama/api/delete", named, "DELETE"))


@check
def passed_on(servers: Servers) -> None:
    call, named = started[0].call, {"model": "scripted:latest"}
    chat = {**named, "messages": [{"role": "user", "content": "Hi"}]}
    prompt = {**named, "prompt": "Hi", "stream": False}
    assert call("/ollama/api/generate", prompt)["response"] == "Hello from the script."
    assert len(call("/ollama/api/embed", {**named, "input": ["one", "two"]})["embeddings"]) == 2
    assert call("/ollama/api/embeddings", {**named, "prompt": "one"})["embedding"]
    assert call("/api/embeddings", {**named, "input": ["one"]})["data"][0]["embedding"]
    assert call("/ollama/v1/chat/completions", chat)["choices"][0]["message"]["content"] == "Hello from the script."
    assert call("/ollama/v1/messages", {**chat, "max_tokens": 64})["content"][0]["text"] == "Hello from the script."
    assert call("/ollama/v1/responses", {**named, "input": "Hi"})["status"] == "completed"


def refusal(send: Callable[[], Any]) -> str:
    """The error that the user sees."""
    try:
        return f"no refusal, but {send()}"
    except AssertionError as error:
        return str(error)


main()
for server in started:
    server.stop()
