"""An option as its field defines it: name, type, default, help, and the form of its text.

One definition gives the keyword, the command-line flag (`flags/settings_flags.py`) and the documentation. Knows no
option by name.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from pyllm.config.option_texts import parse_list, parse_object, parse_size


class ConfigPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all structs of settings. Each field is an option, or a part with options of its own."""


class TextForm(msgspec.Struct, frozen=True, kw_only=True):
    """The text form of an option, where its type does not determine it; stands beside `Meta` in the annotation.

    By type alone, a tuple is words separated by commas, and a dict is a JSON object.
    """

    parse: Callable[[str], Any] | None = None  # replaces the reading by type
    size_unit: int = 0  # for sizes such as 64MiB: bytes that 1 without a unit means; 0: no size
    num_words: Literal["?", "+"] | None = None  # words after the flag; with "+", a keyword's text is a single word
    is_repeated: bool = False  # The flag is repeated to give several values.
    has_auto: bool = False  # vLLM's values `auto` and -1 mean the default.
    is_secret: bool = False  # No message shows the value.
    metavar: str = "TEXT"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option. `type` is without `Annotated`; `default` is None where the field has a default factory."""

    name: str
    type: Any
    default: Any
    help: str
    form: TextForm


def options_of(kind: type[ConfigPart]) -> Iterator[Option]:
    """Every option of a part, and of the parts in it, in the order of definition."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, ConfigPart):
            yield from options_of(field.type)
            continue
        annotation, help_text, form = field.type, "", TextForm()
        while get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            help_text = next((meta.description for meta in metadata if _is_described(meta)), help_text)
            form = next((meta for meta in metadata if isinstance(meta, TextForm)), form)
        default = field.default if field.default_factory is msgspec.NODEFAULT else None
        yield Option(name=field.name, type=annotation, default=default, help=help_text, form=form)


def read_value(option: Option, value: Any) -> Any:
    """The value of a keyword or a flag, with texts such as `64MiB` converted, for its struct to check.

    Raises:
        ConfigError: a text cannot be read.
    """
    if option.form.size_unit:
        return _in_bytes(value, option.form.size_unit)
    if not isinstance(value, str):
        return value
    if option.form.num_words == "+":
        return (value,) if value else ()
    if option.form.parse is not None:
        return option.form.parse(value)
    if get_origin(option.type) is dict:
        return parse_object(option.name, value)
    return parse_list(option.name, value) if get_origin(option.type) is tuple else value


def _is_described(metadata: Any) -> bool:
    return isinstance(metadata, Meta) and bool(metadata.description)


def _in_bytes(value: Any, unit: int) -> Any:
    """A size in bytes, from a text or a number of units; other values are left for the struct's check to refuse."""
    if isinstance(value, str):
        return parse_size(value, unit)
    if unit > 1 and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value * unit)
    return value
