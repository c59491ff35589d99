"""The file of a batch's answers: appended to, mended, and never that of something else."""

import json
import resource
from pathlib import Path

import msgspec
import pytest

from pyllm.batch.answer_file import Answer, AnswerFile, Response
from pyllm.errors import ConfigError, PyllmError

IDS = {"a", "b", "c"}


def answer(custom_id: str, status: int = 200) -> Answer:
    response = Response(status, "r", msgspec.Raw(b'{"text":"\xc3\xbc"}'))
    return Answer(id=f"batch_req_{custom_id}", custom_id=custom_id, response=response)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_those_of_openai(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with AnswerFile(path, IDS) as answers:
        answers.append(answer("a"))
        answers.append(Answer(custom_id="b", response=None, error={"code": "connection_lost", "message": "why"}))
        answers.append(answer("c", 400))
        assert (answers.answered, answers.num_failed) == (IDS, 2)
    first, second, third = lines(path)
    assert first == {
        "id": "batch_req_a",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"text": "ü"}},
        "error": None,
    }
    assert (second["response"], second["error"]) == (None, {"code": "connection_lost", "message": "why"})
    assert third["error"] is None
    with AnswerFile(path, IDS) as answers:
        assert (answers.answered, answers.num_failed) == (IDS, 2)


def test_a_whole_line_without_its_end_stays_and_a_part_of_one_goes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = msgspec.json.encode(answer("a"))
    path.write_bytes(whole)
    with AnswerFile(path, IDS) as answers:
        assert answers.answered == {"a"}
    assert path.read_bytes() == whole + b"\n"
    path.write_bytes(whole + b"\n" + msgspec.json.encode(answer("b"))[:-1])
    with AnswerFile(path, IDS) as answers:
        assert answers.answered == {"a"}
        answers.append(answer("b"))
    assert [line["custom_id"] for line in lines(path)] == ["a", "b"]


def test_answers_of_other_programs_need_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"custom_id": "a", "response": {"status_code": 200, "request_id": null, "body": {}}}\n')
    with AnswerFile(path, IDS) as answers:
        assert answers.answered == {"a"}


def test_zeros_that_a_loss_of_power_left_go(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(msgspec.json.encode(answer("a")) + b"\n" + b"\0" * 99)
    with AnswerFile(path, IDS) as answers:
        assert answers.answered == {"a"}
    assert len(lines(path)) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"my notes", "ends with a line that is no answer"),
        (b"my notes\n", "line 1 of .* is no answer"),
        (b'{"custom_id": "a", "url": "/v1/completions"}\n', "line 1 of .* is no answer"),
        (msgspec.json.encode(answer("d")) + b"\n", "line 1 of .* answers 'd', and no request has"),
        ((msgspec.json.encode(answer("a")) + b"\n") * 2, "line 2 of .* answers 'a' again"),
    ],
)
def test_other_files_are_refused_and_stay_as_they_are(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        AnswerFile(path, IDS)
    assert path.read_bytes() == content


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with AnswerFile(path, IDS), pytest.raises(ConfigError, match="another process writes"):
        AnswerFile(path, IDS)
    with AnswerFile(path, IDS):
        pass


def test_a_disk_without_room_is_named_with_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AnswerFile(path, IDS) as answers:
        answers.append(answer("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
        try:
            with pytest.raises(PyllmError, match="File too large; 1 requests have their answers"):
                answers.append(answer("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert answers.answered == {"a"}
    assert not path.read_text().endswith("\n")
    with AnswerFile(path, IDS) as answers:
        assert answers.answered == {"a"}
        answers.append(answer("b"))
    assert [line["custom_id"] for line in lines(path)] == ["a", "b"]


def test_answers_are_on_the_disk_after_a_second(tmp_path: Path) -> None:
    now, synced = 0.0, list[int]()
    with AnswerFile(tmp_path / "out.jsonl", IDS, lambda: now, synced.append) as answers:
        answers.append(answer("a"))
        assert len(synced) == 0
        now = 1.5
        answers.append(answer("b"))
        answers.append(answer("c"))
        assert len(synced) == 1
    assert len(synced) == 2
