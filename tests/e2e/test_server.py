"""The server as an operator and a client see it: real processes, real HTTP, the embedded model."""

import contextlib
import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server import DEADLINE, Server, find, until
from tests.monitoring import VLLM_SERIES
from tests.tiers import full

FRANCE = "The capital of France is"


def test_processes_carry_titles(server: Server) -> None:
    titles = sorted(title for process in server.tree if (title := process.cmdline()[0]).startswith("pyllm::"))
    assert titles == ["pyllm::api-0", "pyllm::core-0", "pyllm::serve", "pyllm::worker-0-0"]


def test_completion(server: Server) -> None:
    answer = server.complete(FRANCE, max_tokens=1).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == " Paris"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 1


def test_second_request_hits_the_prefix_cache(server: Server) -> None:
    prompt = "One two three four five six seven. " * 10
    first, second = (server.complete(prompt, max_tokens=4).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_streamed_chat_equals_the_whole_answer(server: Server) -> None:
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    with server.http() as http:
        whole = http.post("/v1/chat/completions", json=body).json()["choices"][0]
        events = stream(http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == whole["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 24


def test_openai_package(server: Server) -> None:
    with OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        completion = client.completions.create(model=model, prompt=FRANCE, max_tokens=1, temperature=0)
        assert completion.choices[0].text == " Paris"
        pieces = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
        )
        assert sum(len(piece.choices) for piece in pieces) >= 2


def test_seed_repeats_and_samples_differ(server: Server) -> None:
    first, again = (
        server.complete(FRANCE, temperature=1.0, seed=7, n=3, max_tokens=12).json()["choices"] for _ in range(2)
    )
    assert first == again
    assert sorted(choice["index"] for choice in first) == [0, 1, 2]
    assert len({choice["text"] for choice in first}) == 3
    other = server.complete(FRANCE, temperature=1.0, seed=8, n=3, max_tokens=12).json()["choices"]
    assert other != first


def test_stop_string_ends_the_text_before_it(server: Server) -> None:
    whole = server.complete(FRANCE, max_tokens=50, ignore_eos=True).json()["choices"][0]["text"]
    word = whole.split()[10]
    answer = server.complete(FRANCE, max_tokens=50, ignore_eos=True, stop=[word]).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["text"] == whole[: whole.index(word)]
    until(lambda: server.metric("vllm:num_requests_running") == 0, "the stopped request to be aborted in the core")


def test_models_health_version_metrics(server: Server) -> None:
    with server.http() as http:
        model = http.get("/v1/models").json()["data"][0]
        assert model["max_model_len"] == 8192
        assert http.get("/health").status_code == 200
        assert http.get("/version").json() == {"version": "0.1.0"}
    assert server.metric("vllm:generation_tokens_total") > 0
    assert server.metric("vllm:time_to_first_token_seconds_count") > 0


TIMES = ("queue_time", "prefill_time", "decode_time", "inference_time", "time_per_output_token")


def test_a_requests_time_is_told_apart(server: Server) -> None:
    def figures() -> dict[str, float]:
        names = [f"vllm:request_{name}_seconds" for name in TIMES]
        names += ["vllm:time_to_first_token_seconds", "vllm:request_max_num_generation_tokens"]
        return {name + part: server.metric(name + part) for name in names for part in ("_count", "_sum")}

    def added(**fields: object) -> dict[str, float]:
        before = figures()
        assert server.complete("Once upon a time", ignore_eos=True, **fields).status_code == 200
        return {name.partition(":")[2]: after - before[name] for name, after in figures().items()}

    one = added(max_tokens=5)
    assert [one[f"request_{name}_seconds_count"] for name in TIMES] == [1] * 5
    assert (one["request_max_num_generation_tokens_count"], one["request_max_num_generation_tokens_sum"]) == (1, 5)
    seconds = {name: one[f"request_{name}_seconds_sum"] for name in TIMES}
    assert seconds["inference_time"] == pytest.approx(seconds["prefill_time"] + seconds["decode_time"], abs=1e-4)
    assert seconds["time_per_output_token"] == pytest.approx(seconds["decode_time"] / 4, abs=1e-4)
    # What the core tells lies within what this side has waited.
    assert seconds["queue_time"] + seconds["prefill_time"] <= one["time_to_first_token_seconds_sum"]
    assert min(seconds["queue_time"], seconds["prefill_time"]) > 0

    several = added(max_tokens=3, n=3, temperature=1.0)
    assert [several[f"request_{name}_seconds_count"] for name in TIMES] == [1, 1, 3, 3, 3]
    assert several["request_max_num_generation_tokens_count"] == 1


def test_every_step_is_counted_by_its_tokens(server: Server) -> None:
    with server.http() as http:
        families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    samples = families["vllm:iteration_tokens_total"].samples
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    counts = [sample.value for sample in buckets]
    bounds = [sample.labels["le"] for sample in buckets]
    assert bounds == [*(str(float(bound)) for bound in (1, *(2**power for power in range(3, 15)))), "+Inf"]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1]  # steps of one decode, and of a prompt
    (total,) = (sample.value for sample in samples if sample.name.endswith("_sum"))
    assert total == families["pyllm:num_scheduled_tokens"].samples[0].value


def test_vllms_dashboards_find_every_series(server: Server) -> None:
    with server.http() as http:
        families = text_string_to_metric_families(http.get("/metrics").text)
    assert {sample.name for family in families for sample in family.samples} >= VLLM_SERIES


BAD_REQUESTS: dict[str, tuple[bytes, int]] = {
    "wrong JSON": (b'{"prompt": ', 400),
    "not an object": (b"[1, 2]", 400),
    "invalid UTF-8": (b'{"model": "MODEL", "prompt": "\xff\xfe"}', 400),
    "wrong type": (b'{"model": "MODEL", "prompt": "a", "max_tokens": "many"}', 400),
    "unknown model": (b'{"model": "gpt-9", "prompt": "a"}', 404),
    "negative max_tokens": (b'{"model": "MODEL", "prompt": "a", "max_tokens": -2}', 400),
    "unsupported": (b'{"model": "MODEL", "prompt": "a", "prompt_embeds": "b"}', 400),
    "temperature": (b'{"model": "MODEL", "prompt": "a", "temperature": -1}', 400),
    "top_k out of range": (b'{"model": "MODEL", "prompt": "a", "top_k": 9223372036854775808}', 400),
    "more samples than slots": (b'{"model": "MODEL", "prompt": "a", "n": 16384}', 400),
    "token id": (b'{"model": "MODEL", "prompt": [1, 99999999]}', 400),
    "empty prompt": (b'{"model": "MODEL", "prompt": []}', 400),
    "prompt longer than the context": (b'{"model": "MODEL", "prompt": "' + b"word " * 9000 + b'"}', 400),
    "10 MB body": (b'{"model": "MODEL", "prompt": "' + b"a" * 10_500_000 + b'"}', 413),
    "deep nesting": (b"[" * 100_000 + b"]" * 100_000, 400),
    "empty": (b"", 400),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_request_is_a_clear_error_and_the_next_is_served(server: Server, case: str) -> None:
    body, status = BAD_REQUESTS[case]
    body = body.replace(b"MODEL", server.model().encode())
    with server.http() as http:
        answer = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    assert "/pyllm/" not in answer.text
    assert server.complete(FRANCE, max_tokens=1).json()["choices"][0]["text"] == " Paris"


def test_unknown_field_is_named_in_a_header_and_counted(server: Server) -> None:
    answer = server.complete(FRANCE, max_tokens=1, max_token=3)
    assert (answer.status_code, answer.headers["pyllm-ignored-fields"]) == (200, "max_token")
    assert server.metric("pyllm:ignored_fields_total") == 1


def test_unknown_route_and_method_have_the_error_shape(server: Server) -> None:
    with server.http() as http:
        for path, status in (("/v1/nothing", 404), ("/v1/completions", 405)):
            answer = http.get(path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_random_bytes_on_the_http_port_harm_nobody(server: Server) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes(range(256)) * 20)
        assert connection.recv(1000).startswith((b"HTTP/1.1 400", b""))
    assert server.complete(FRANCE, max_tokens=1).status_code == 200


def test_disconnected_client_frees_its_blocks(server: Server) -> None:
    body = {"model": server.model(), "prompt": FRANCE, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: the response is closed when its iterator goes
        next(lines)
        assert server.metric("vllm:num_requests_running") == 1
    until(lambda: server.metric("vllm:num_requests_running") == 0, "the disconnected request to be aborted")
    until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0, "its blocks to be free")


def test_port_in_use_is_one_clear_line(server: Server) -> None:
    port = server.address.rsplit(":", 1)[1]
    second = Server("--port", port)
    assert second.wait() == 2
    assert f"cannot listen on 127.0.0.1:{port}" in second.log
    assert "Traceback" not in second.log


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("is_path", [False, full(True)])
def test_a_second_start_on_an_address_whose_server_still_loads_ends_and_the_first_is_reached(
    is_path: bool, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ("--uds", f"{tmp_path}/s") if is_path else ("--port", str(free.getsockname()[1]))
    with contextlib.ExitStack() as ending:
        first = Server(*address)
        ending.callback(first.stop)
        until(lambda: len(psutil.Process(first.process.pid).children()) > 0, "the first one to have bound")
        second = Server(*address)
        assert second.wait() == 2
        assert f"cannot listen on {address[1] if is_path else f'127.0.0.1:{address[1]}'}: another pyllm" in second.log
        transport = httpx.HTTPTransport(uds=address[1] if is_path else None)
        with first, httpx.Client(transport=transport, base_url=first.address if not is_path else "http://u") as http:
            assert http.get("/health").status_code == 200


def test_api_process_has_neither_torch_nor_transformers(server: Server) -> None:
    mapped = {mapping.path for mapping in server.titled("pyllm::api-0").memory_maps()}
    assert not [path for path in mapped if "torch" in path or "transformers" in path]


def test_with_a_json_log_all_that_is_written_is_json_and_a_record_says_ready(tmp_path: Path) -> None:
    notified = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(notified)
        manager.settimeout(DEADLINE)
        server = Server("--log-format", "json", "--access-log", environment={"NOTIFY_SOCKET": notified})
        try:
            assert manager.recv(1000).startswith(b"READY=1")
            crashed = server.titled("pyllm::api-0")
            crashed.send_signal(signal.SIGSEGV)
            until(lambda: [each.pid for each in find(server.process.pid, "pyllm::api-0")] != [crashed.pid], "its end")
        finally:
            assert server.stop(signal.SIGHUP) == 0
        assert manager.recv(1000).startswith(b"STOPPING=1")
    assert server.process.stdout is not None
    records = [json.loads(line) for line in server.log.splitlines()]
    (ready,) = [record for record in records if record.get("event") == "ready"]
    assert ready["address"].startswith("http://127.0.0.1:")
    stacks = [record for record in records if record["process"] == "API process 0"]
    assert any("Fatal Python error: Segmentation fault" in record["message"] for record in stacks)
    failed = Server("--log-format", "json", "--max-model-len", "99999999")
    assert failed.wait() == 2
    assert [json.loads(line) for line in failed.log.splitlines()][-1]["event"] == "failed"
