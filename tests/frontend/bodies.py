"""Bodies of requests, made from the structs that they decode as. Reads annotations, as `body_shape.py` does not."""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from msgspec import NODEFAULT, Meta, Struct

from pyllm.frontend.anthropic.protocol import CountTokensRequest, MessagesRequest
from pyllm.frontend.openai.embedding_protocol import EmbeddingRequest
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest
from pyllm.frontend.openai.tokenization import DetokenizeRequest, TokenizeRequest
from pyllm.frontend.responses.protocol import ResponsesRequest
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

REQUESTS: list[type[Struct]] = [
    *(CompletionRequest, ChatRequest, ResponsesRequest, CountTokensRequest, MessagesRequest),
    *(EmbeddingRequest, TokenizeRequest, DetokenizeRequest),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
_PLAIN = {
    Any: JSON,
    str: st.text(max_size=3),
    int: st.integers(1, 9),
    float: st.floats(0.5, 1),  # in the range of each parameter
    bool: st.booleans(),
    type(None): st.none(),
}


def annotations(kind: type[Struct]) -> dict[str, Any]:
    """Each field's annotation, by the name that it has in JSON."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def options(annotation: Any) -> list[Any]:
    """The types that a value may be of."""
    if get_origin(annotation) is Annotated:
        return options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for part in get_args(annotation) for option in options(part)]
    return [annotation]


def is_struct(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, Struct)


def reachable(kinds: list[type[Struct]]) -> list[type[Struct]]:
    """These structs, and all that values of theirs may be of."""
    found: dict[type[Struct], None] = {}
    left: list[Any] = list(kinds)
    while left:
        option = left.pop()
        if is_struct(option) and option not in found:
            found[option] = None
            left += [part for annotation in annotations(option).values() for part in options(annotation)]
        elif get_origin(option) is list:
            left += options(get_args(option)[0])
    return list(found)


def bodies(kind: type[Struct], unknown: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that decode as the struct; each, at every level, has fields of `unknown` besides."""
    if kind is StructuredOutputsParams:  # It wants exactly one of its fields.
        return unknown.map(lambda others: {"json_object": True} | others)
    names = annotations(kind)
    needed: dict[str, st.SearchStrategy[Any]] = {}
    others: dict[str, st.SearchStrategy[Any]] = {}
    config = kind.__struct_config__
    for field in msgspec.structs.fields(kind):
        has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        values = st.deferred(lambda annotation=names[field.encode_name]: _values(annotation, unknown))  # type: ignore[misc]
        (others if has_default else needed)[field.encode_name] = values
    if config.tag_field is not None:
        needed[config.tag_field] = st.just(config.tag)
    known = needed.keys() | others.keys()

    @st.composite
    def make(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(others)), max_size=3, unique=True)) if others else []
        fields = {name: value for name, value in draw(unknown).items() if name not in known}
        fields |= {name: draw(values) for name, values in needed.items()}
        return fields | {name: draw(others[name]) for name in chosen}

    return make()


def _values(annotation: Any, unknown: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        if any(isinstance(meta, Meta) and meta.pattern for meta in metas):
            return st.just("name")
        if any(isinstance(meta, Meta) and meta.min_length for meta in metas):
            if inner is str:
                return st.text(min_size=1, max_size=3)
            return st.lists(_values(get_args(inner)[0], unknown), min_size=1, max_size=2)
        return _values(inner, unknown)
    return st.one_of([_of_type(option, unknown) for option in options(annotation)])


def _of_type(option: Any, unknown: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    if is_struct(option):
        return bodies(option, unknown)
    match get_origin(option):
        case origin if origin is list:
            return st.lists(_values(get_args(option)[0], unknown), max_size=2)
        case origin if origin is tuple:
            return st.tuples(*[_values(part, unknown) for part in get_args(option)]).map(list)
        case origin if origin is dict:
            key, value = get_args(option)
            keys = st.integers(0, 9).map(str) if key is int else st.text(max_size=3)
            return st.dictionaries(keys, _values(value, unknown), max_size=2)
        case origin if origin is Literal:
            return st.sampled_from(get_args(option))
    return _PLAIN[option]
