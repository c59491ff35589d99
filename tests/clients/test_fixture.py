"""What is left of a recorded request."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.clients.fixture import FOLDER, Fixture

IDENTITY = "0123abcd-0123-4567-89ab-0123456789ab"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**12) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


def fixture_of(body: Any) -> Any:
    """The body that is left of one."""
    headers = {"Content-Type": "application/json", "authorization": "Bearer secret", "host": "here"}
    fixture = Fixture.of({"method": "POST", "path": "/v1/x", "headers": headers, "body": body})
    assert fixture.headers == {"content-type": "application/json"}
    return fixture.body


@given(VALUES)
def test_fields_and_types_stay(body: Any) -> None:
    assert shape(fixture_of({"x": body})) == shape({"x": body})


@given(st.text(alphabet=st.characters(codec="ascii"), min_size=61).filter(lambda text: text[0] not in "{["))
def test_a_long_text_keeps_its_length_and_its_white_space(text: str) -> None:
    left = fixture_of({"text": text})["text"]
    assert len(left) == len(text)
    assert [each.isspace() for each in left] == [each.isspace() for each in text]


def test_names_of_people_and_machines_go() -> None:
    body = {"id": f"key-{IDENTITY}", "cwd": "/home/someone/project", "day": "2026-11-23", "model": "anything"}
    assert fixture_of(body) == {
        "id": "key-00000000-0000-0000-0000-000000000000",
        "cwd": "/home/user/project",
        "day": "2000-01-01",
        "model": "scripted",
    }


def test_json_within_a_text_stays_json() -> None:
    text = json.dumps({"session": IDENTITY, "padding": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]})
    assert json.loads(fixture_of({"user_id": text})["user_id"])["session"] == "00000000-0000-0000-0000-000000000000"


def test_no_fixture_names_a_place_or_a_session() -> None:
    for path in FOLDER.glob("*/*.json"):
        text = path.read_text()
        for word in ("/tmp", "/work", "/root/", "127.0.0.1", "Bearer"):
            assert word not in text, path


def shape(value: Any) -> Any:
    """Names and types."""
    match value:
        case dict():
            return {name: shape(each) for name, each in value.items() if name != "model"}
        case list():
            return [shape(each) for each in value]
        case _:
            return type(value)
