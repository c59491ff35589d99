"""A real Prometheus with the configuration and rules of `deploy/monitoring`, which scrapes one server."""

import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.monitoring import MONITORING
from tests.services import service_program


class Prometheus:
    """The process while it is entered; scrapes and evaluates its rules several times a second."""

    def __init__(self, folder: Path, target: str) -> None:
        config = (MONITORING / "prometheus.yaml").read_text()
        assert config.count("localhost:8000") == 1
        config = config.replace("localhost:8000", target).replace(" 15s", " 250ms")
        (folder / "prometheus.yaml").write_text(config)
        (folder / "alerts.yaml").write_bytes((MONITORING / "alerts.yaml").read_bytes())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._http = httpx.Client(base_url=f"http://{address}/api/v1")
        self._command = [service_program("prometheus"), f"--web.listen-address={address}"]
        self._command += [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]

    def __enter__(self) -> "Prometheus":
        self._process = subprocess.Popen([*self._command, "--log.level=error"], stderr=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()
        self._process.terminate()
        self.log = self._process.communicate()[1]

    def query(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query; none while the process starts."""
        assert self._process.poll() is None, self._process.communicate()[1]
        try:
            answer = self._http.get("/query", params={"query": query})
        except httpx.ConnectError:
            return []
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, answer.text
        series: list[dict[str, Any]] = answer.json()["data"]["result"]
        return series

    def alerts(self) -> dict[str, str]:
        """The health of each rule, by its alert's name."""
        groups = self._http.get("/rules").json()["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
