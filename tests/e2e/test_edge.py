"""The edge of a real server: keys, limits, TLS and a Unix socket, by its flags."""

import json
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from pyllm.cli import main
from tests.certificates import self_signed
from tests.e2e.server import Server


def make_key(name: str) -> tuple[str, str]:
    """A key and its entry, by the command that users have."""
    command = [sys.executable, "-m", "pyllm", "apikey", name]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    key, entry = (line.partition(": ")[2] for line in lines)
    return key, entry


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of localhost, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    both = folder / "both.pem"
    both.write_bytes(b"".join(Path(file).read_bytes() for file in self_signed(folder)))
    return both


def test_keys_and_limits_by_the_openai_package_over_tls_and_a_unix_socket(tmp_path: Path, certificate: Path) -> None:
    (limited, first), (other, second) = make_key("limited"), make_key("other")
    file, path = tmp_path / "keys.json", tmp_path / "server.sock"
    first = first.replace("}", ', "max_requests_per_minute": 2}')
    file.write_text(f'{{"keys": [{first}, {second}]}}')
    file.chmod(0o600)
    config = tmp_path / "server.yaml"
    config.write_text(f"uds: {path}\nlog-format: json\nenable-log-requests: true\napi-key: [from-a-file]\n")
    flags = ("--api-key-file", str(file), "--ssl-certfile", str(certificate), "--config", str(config))
    flags += ("--trust-remote-code", "--ssl_cert_reqs", "0")
    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        Server(*flags, environment={"PYLLM_API_KEY": "from-the-environment"}, logs_json=True) as server,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path), verify=trust), base_url="https://localhost", timeout=60
        ) as http,
    ):
        assert server.address == f"unix:{path}"

        def client(key: str) -> openai.OpenAI:
            return openai.OpenAI(base_url="https://localhost/v1", api_key=key, max_retries=0, http_client=http)

        def ask(key: str) -> str:
            api = client(key)
            model = api.models.list().data[0].id
            answer = api.completions.create(model=model, prompt="Hello", max_tokens=3, temperature=0)
            stream = api.completions.create(model=model, prompt="Hello", max_tokens=3, temperature=0, stream=True)
            text = "".join(chunk.choices[0].text for chunk in stream)
            assert text == answer.choices[0].text
            return text

        with pytest.raises(openai.AuthenticationError) as unknown:
            client("sk-wrong").models.list()
        assert unknown.value.code == "invalid_api_key"
        expected = ask(limited)
        with pytest.raises(openai.RateLimitError) as refused:
            ask(limited)
        assert refused.value.code == "rate_limit_exceeded"
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 30
        assert {ask(other), ask("from-the-environment"), ask("from-a-file")} == {expected}
        for route, status in (("/health/live", 200), ("/health/ready", 200), ("/metrics", 401)):
            assert http.get(route).status_code == status
        headers = {"x-api-key": other, "x-request-timeout": "0.001"}
        late = http.post("/v1/completions", json={"prompt": "Hello " * 500, "max_tokens": 4}, headers=headers)
        assert (late.status_code, late.json()["error"]["code"]) == (408, "request_timeout")
        assert 'reason="requests"} 1.0' in http.get("/metrics", headers=headers).text
    assert server.process.returncode == 0
    assert server.orphans() == []
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"pyllm::serve", "pyllm::core-0", "pyllm::api-0"} <= {line["process"] for line in lines}
    assert any(line["message"].startswith("--trust-remote-code: ") for line in lines)
    requests = [line for line in lines if "prompt 'Hello'" in line["message"]]
    assert len(requests) > 6
    assert all(line["request_id"] in line["message"] for line in requests)
    assert not any(key in server.log for key in (limited, other, "from-the-environment", "from-a-file"))
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--ssl-certfile", "/nowhere.pem"], "/nowhere.pem"),
        (["--ssl-keyfile", "/nowhere.pem"], "--ssl-certfile"),
        (["--api-key-file", "/nowhere.json"], "/nowhere.json"),
        (["--uds", "/nowhere/socket"], "--uds"),
        (["--otlp-traces-endpoint", "localhost:4318"], "http://localhost:4318/v1/traces"),
        (["--allowed-origins", "a.com"], "https://a.com"),
        (["--max-request-body-bytes", "0"], "max_request_body_bytes"),
    ],
)
def test_what_cannot_work_ends_before_processes_start(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *flags]) == 2
    assert text in capsys.readouterr().err
