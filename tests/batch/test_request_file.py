"""Requests of a batch: what is in the file, and what is wrong with it, by line."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyllm.batch.request_file import URLS, RequestFile, WrongLinesError
from pyllm.errors import ConfigError


def line(custom_id: object = "a", **fields: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URLS[0], "body": {"model": "m"}} | fields)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_bodies_are_sent_as_they_are(tmp_path: Path) -> None:
    body = '{"model": "m", "prompt": "\\u00fc \U0001f600", "top_p": 0.10, "n": 1}'
    text = f'{{"url": "{URLS[1]}", "body": {body}, "method": "POST", "custom_id": "b", "more": [1]}}'
    path = write(tmp_path, line(), "", text, "   ")
    with RequestFile(path) as requests:
        first, second = requests.requests
        assert (first.custom_id, first.url) == ("a", URLS[0])
        assert (second.custom_id, second.url) == ("b", URLS[1])
        assert requests.body(second).decode() == body
        assert json.loads(requests.body(first)) == {"model": "m"}
        assert requests.models == {"m"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON"),
        ('"a"', "expected object, got str"),
        ('{"custom_id": "\xff"'.encode("latin-1").decode("latin-1"), "no JSON"),
        (line(7), "custom_id: Expected str, got int"),
        ('{"method": "POST", "url": "/v1/completions", "body": {}}', "missing required field custom_id"),
        (line(""), "custom_id has 0 characters: it must have 1 to 512"),
        (line("a" * 513), "custom_id has 513 characters"),
        (line(method="GET"), "method is 'GET': it must be POST"),
        (line(url="/v1/images"), "url is '/v1/images': it must be one of /v1/chat/completions"),
        (line(body=[]), "body: Expected object, got array"),
        (line(body={"stream": True}), "stream is true: a batch has whole answers"),
        (line("first"), "custom_id 'first' is that of line 1, too"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RequestFile(write(tmp_path, line("first"), text, line("last")))
    assert "line 2: " in str(raised.value)
    assert problem.lower() in str(raised.value).lower()


def test_many_problems_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, *["{}"] * 23)
    with pytest.raises(WrongLinesError, match=r"line 1: Object missing.*, and 22 more lines are wrong") as raised:
        RequestFile(path)
    assert [problem.partition(":")[0] for problem in raised.value.problems] == [f"line {n}" for n in range(1, 24)]


def test_bytes_that_are_no_text_are_a_problem_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xff\xfe\n{"custom_id": "\xff"}\n')
    with pytest.raises(WrongLinesError) as raised:
        RequestFile(path)
    first, second = raised.value.problems
    assert first.startswith("line 1: no JSON")
    assert second.startswith("line 2: ")


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_a_file_without_requests_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="has no requests"):
        RequestFile(write(tmp_path, text))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the requests"):
        RequestFile(tmp_path)


def test_every_url_is_taken(tmp_path: Path) -> None:
    with RequestFile(write(tmp_path, *(line(url, url=url) for url in URLS))) as requests:
        assert [request.url for request in requests.requests] == list(URLS)
