"""Fields of a config.json: what each getter takes, and that it names what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest

from pyllm.errors import ConfigError
from pyllm.families.config import Config, UnsupportedFeatureError

GETTERS: dict[str, tuple[Callable[[Config], Any], list[Any], list[Any]]] = {
    "integer": (lambda config: config.integer("x"), [1, 7, 4.0, 2**31 - 1], [0, -1, 2**31, 1.5, True, "1", [1]]),
    "number": (lambda config: config.number("x"), [0, -2.5, 3], [float("nan"), float("inf"), "1", False]),
    "positive": (lambda config: config.positive("x"), [1e-9, 3], [0, -1.0, float("inf"), "1"]),
    "numbers": (lambda config: config.numbers("x", 2), [[1, 2.5]], [[1], [1, 0], [1, "2"], 3, "ab"]),
    "flag": (lambda config: config.flag("x"), [True, False], [0, 1, "true"]),
    "text": (lambda config: config.text("x"), ["", "silu"], [1, None, ["a"]]),
    "items": (lambda config: config.items("x", 2), [[1, "a"], [1, 2, 3]], [[1], "ab", 2]),
    "section": (lambda config: config.section("x"), [{}, {"a": 1}], [[1], "a", 3]),
}


@pytest.mark.parametrize("name", GETTERS)
def test_a_getter_takes_its_kind_and_refuses_others_by_name(name: str) -> None:
    getter, right, wrong = GETTERS[name]
    for value in right:
        getter(Config({"x": value}))
    for value in wrong:
        with pytest.raises(ConfigError, match=r"file: x is|file has no field x"):
            getter(Config({"x": value}, "file"))


def test_null_is_absent_and_known() -> None:
    config = Config({"x": None, "y": 3})
    assert "x" not in config
    assert config.nulls == {"x"}
    assert config.optional_integer("x") is None
    assert config.with_defaults(x=5, z=6).nulls == {"x"}
    assert config.with_defaults(z=6).integer("z") == 6
    assert config.replaced(x=5).integer("x") == 5


def test_a_section_may_have_other_values() -> None:
    config = Config({"x": {"a": 1, "b": 2}})
    assert [config.with_section("x", b=3).section("x").integer(name) for name in "ab"] == [1, 3]
    assert config.with_section("y", b=3).section("y").integer("b") == 3
    assert "y" not in config.without("y")


def test_what_changes_the_answer_is_refused_unless_neutral() -> None:
    Config({"x": 1}).refuse_unless(x=1, y=2)
    with pytest.raises(UnsupportedFeatureError, match="x = 3 is not supported, only 1"):
        Config({"x": 3}).refuse_unless(x=1)


def test_a_field_may_have_an_older_name() -> None:
    config = Config({"n_embd": 8, "n_head": 2, "num_attention_heads": 4})
    renamed = config.renamed(hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer")
    assert (renamed.integer("hidden_size"), renamed.integer("num_attention_heads")) == (8, 4)
    assert "num_hidden_layers" not in renamed
