from typing import Annotated, Any

import pytest
from msgspec import Meta, field

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_fields import ConfigPart, Option, TextForm, options_of, read_value
from pyllm.config.server_settings import HeadlessConfig, ServerConfig
from pyllm.errors import ConfigError


class Inner(ConfigPart, frozen=True):
    plain: str = "x"
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="a limit"), TextForm(size_unit=1024)] = None
    labels: Annotated[tuple[str, ...], Meta(description="some labels")] = ()
    names: Annotated[tuple[str, ...], TextForm(num_words="+", is_secret=True), Meta(description="some names")] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    reversed: Annotated[tuple[str, ...], TextForm(parse=lambda text: tuple(reversed(text)))] = ()


class Outer(ConfigPart, frozen=True):
    first: bool = True
    inner: Inner = Inner()


OPTIONS: dict[str, Option] = {option.name: option for option in options_of(Outer)}


def test_options_are_those_of_a_part_and_of_the_parts_in_it_in_order() -> None:
    assert list(OPTIONS) == ["first", "plain", "limit", "labels", "names", "settings", "reversed"]


def test_an_option_has_what_its_annotation_says_in_any_order() -> None:
    assert (OPTIONS["limit"].help, OPTIONS["limit"].form) == ("a limit", TextForm(size_unit=1024))
    assert (OPTIONS["names"].help, OPTIONS["names"].form) == ("some names", TextForm(num_words="+", is_secret=True))
    assert OPTIONS["labels"].type == tuple[str, ...]
    assert OPTIONS["limit"].type == Annotated[int, Meta(ge=1)] | None
    assert (OPTIONS["plain"].default, OPTIONS["settings"].default) == ("x", None)
    assert OPTIONS["plain"].form == TextForm()


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("plain", "a,b", "a,b"),
        ("limit", "2", 2048),
        ("limit", 1.5, 1536),
        ("limit", "3MiB", 3 << 20),
        ("limit", True, True),
        ("labels", "a, b", ("a", "b")),
        ("labels", '["a,b"]', ("a,b",)),
        ("labels", ["a"], ["a"]),
        ("names", "a,b", ("a,b",)),
        ("names", "", ()),
        ("settings", '{"a": [1]}', {"a": [1]}),
        ("reversed", "abc", ("c", "b", "a")),
        ("first", "yes", "yes"),
    ],
)
def test_a_text_is_read_by_the_form_or_else_by_the_type(name: str, value: object, read: object) -> None:
    assert read_value(OPTIONS[name], value) == read


@pytest.mark.parametrize(("name", "text"), [("settings", "[]"), ("settings", "{"), ("labels", "[1]")])
def test_a_text_that_does_not_read_is_refused_by_the_options_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_value(OPTIONS[name], text)


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig, HeadlessConfig])
def test_every_setting_has_a_help(kind: type[ConfigPart]) -> None:
    assert [option.name for option in options_of(kind) if not option.help] == []
