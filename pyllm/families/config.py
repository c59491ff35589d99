"""Checked access to the fields of a config.json, or of what stands for one. Knows no family."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pyllm.errors import ConfigError

_LARGEST = 2**31 - 1
_REQUIRED: Any = object()


class UnsupportedFeatureError(ConfigError):
    """A field has a value that its family does not compute; transformers may."""


class Config:
    """The fields of a model's configuration; null counts as absent. `nulls` names the fields whose value is null.

    Every method raises `ConfigError` for a field that is missing without a default, or of the wrong kind.
    """

    def __init__(self, fields: Mapping[str, Any], place: str = "config.json") -> None:
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self.nulls = fields.keys() - self._fields.keys()
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def value(self, name: str) -> Any:
        """The value of a field, of any kind; None if it is absent."""
        return self._fields.get(name)

    def integer(self, name: str, default: int = _REQUIRED, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number from `least` to `most`."""
        value = self._get(name, default)
        whole = _whole(value)
        if whole is None or not least <= whole <= most:
            raise self.error(name, value, f"a whole number from {least} to {most}")
        return whole

    def optional_integer(self, name: str) -> int | None:
        """A whole number of at least 1, or None."""
        return self.integer(name) if name in self else None

    def number(self, name: str, default: float = _REQUIRED) -> float:
        """A finite number."""
        value = self._get(name, default)
        try:
            if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        except OverflowError:
            raise self.error(name, f"a number of {value.bit_length()} bits", "a finite number") from None
        raise self.error(name, value, "a finite number")

    def positive(self, name: str, default: float = _REQUIRED) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if value <= 0:
            raise self.error(name, value, "a number above 0")
        return value

    def optional_positive(self, name: str) -> float | None:
        """A finite number above 0, or None."""
        return self.positive(name) if name in self else None

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """`count` finite numbers above 0."""
        values = self._get(name, _REQUIRED)
        if not isinstance(values, list) or len(values) != count:
            raise self.error(name, values, f"a list of {count} numbers")
        return tuple(Config({name: value}, self.place).positive(name) for value in values)

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, name: str, default: str = _REQUIRED) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def equals(self, name: str, value: Any) -> bool:
        """Whether the field is present with this value."""
        return name in self and bool(self._fields[name] == value)

    def items(self, name: str, count: int) -> list[Any]:
        """A list of `count` items, one for each layer."""
        values = self._get(name, _REQUIRED)
        if not isinstance(values, list) or len(values) < count:
            raise self.error(name, values, f"a list of {count} items")
        return values[:count]

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers, null items skipped; empty if there is none."""
        values = self._get(name, [])
        found = [_whole(value) for value in values if value is not None] if isinstance(values, list) else [None]
        if None in found:
            raise self.error(name, values, "a list of whole numbers")
        return [value for value in found if value is not None]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if there is none."""
        values = self._get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(name, values, "a list of strings")
        return tuple(values)

    def section(self, name: str) -> "Config":
        """A dictionary within; empty if there is none."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, value, "a dictionary")
        return Config(value, f"{self.place}: {name}")

    def with_defaults(self, **defaults: Any) -> "Config":
        """A copy with defaults for absent fields; null stays null."""
        return Config(defaults | dict.fromkeys(self.nulls) | self._fields, self.place)

    def replaced(self, **changes: Any) -> "Config":
        """A copy with other values in some fields."""
        return Config(dict.fromkeys(self.nulls) | self._fields | changes, self.place)

    def renamed(self, **names: str) -> "Config":
        """A copy with fields under other names, as in `hidden_size="n_embd"`; a field that is there stays as it is."""
        return self.with_defaults(**{name: self._fields[own] for name, own in names.items() if own in self._fields})

    def with_section(self, name: str, **changes: Any) -> "Config":
        """A copy with other values in a dictionary within."""
        return self.replaced(**{name: self.section(name)._fields | changes})

    def without(self, *names: str) -> "Config":
        """A copy without some fields."""
        return Config({name: value for name, value in self._fields.items() if name not in names}, self.place)

    def refuse_unless(self, **supported: Any) -> None:
        """Refuse fields whose value would change the answer in a way that is not supported.

        Raises:
            UnsupportedFeatureError: a field is present and has another value than the one given for it.
        """
        for name, value in supported.items():
            found = self._fields.get(name, value)
            if found != value:
                text = f"{self.place}: {name} = {found!r:.80} is not supported, only {value!r}"
                raise UnsupportedFeatureError(text)

    def error(self, name: str, value: Any, expected: str) -> ConfigError:
        """The error for a field with a wrong value."""
        return ConfigError(f"{self.place}: {name} is {value!r:.80}; it must be {expected}")

    def _get(self, name: str, default: Any) -> Any:
        value = self._fields.get(name, default)
        if value is _REQUIRED:
            raise ConfigError(f"{self.place} has no field {name}, which this architecture needs")
        return value


def _whole(value: Any) -> int | None:
    """A whole number, which may be written as 7.0; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
