"""The second look at a body finds what no struct knows, at every level, and nothing in what is the caller's own."""

from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT, Struct

from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import MessagesRequest
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.ignored_fields import MAX_NAMES, Hint, NoEffect, RequestFields
from pyllm.frontend.openai.embedding_protocol import EmbeddingRequest
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest
from pyllm.frontend.openai.tokenization import TokenizeRequest
from pyllm.frontend.responses.protocol import ResponsesRequest
from tests.frontend.bodies import JSON, REQUESTS, annotations, bodies, is_struct, options, reachable
from tests.tiers import cases

STRANGE = {"name": "x", "messages": [{"nope": 1}], "type": "of no struct", "": {"a": [{"b": 1}]}}
# Keys that structs have elsewhere, and keys that none has.
UNKNOWN = st.dictionaries(
    st.sampled_from(["type", "name", "text", "tools", "x"]) | st.text(max_size=3), JSON, max_size=2
)


def found(kind: type[Struct], body: dict[str, Any] | bytes) -> list[str]:
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    msgspec.json.decode(encoded, type=kind)
    fields = RequestFields()
    find_ignored(encoded, kind, fields)
    assert not fields.has_more
    return [name for name, _ in fields.names]


USER = {"role": "user", "content": "x"}
CHAT = {"messages": [USER]}
MESSAGES = {"messages": [USER], "max_tokens": 1}


@pytest.mark.parametrize(
    ("kind", "body", "names"),
    [
        (CompletionRequest, {"prompt": "x", "a": 1, "b": None}, ["a", "b"]),
        (EmbeddingRequest, {"input": "x", "a": {}}, ["a"]),
        (TokenizeRequest, {"messages": [{**USER, "a": 1}]}, ["messages.a"]),
        (ChatRequest, {"messages": [{**USER, "a": 1}, {**USER, "a": 2, "b": 1}]}, ["messages.a", "messages.b"]),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "x", "a": 1}]}]}, ["messages.content.a"]),
        (
            ChatRequest,
            {**CHAT, "tools": [{"type": "function", "a": 1, "function": {"name": "f", "b": 1}}]},
            ["tools.a", "tools.function.b"],
        ),
        (
            ChatRequest,
            {**CHAT, "response_format": {"type": "json_schema", "a": 1, "json_schema": {"schema": {}, "b": 1}}},
            ["response_format.a", "response_format.json_schema.b"],
        ),
        (
            ChatRequest,
            {"messages": [{"role": "assistant", "tool_calls": [{"a": 1, "function": {"name": "f", "b": 1}}]}]},
            ["messages.tool_calls.a", "messages.tool_calls.function.b"],
        ),
        (ChatRequest, {**CHAT, "stream_options": {"a": 1}}, ["stream_options.a"]),
        (ChatRequest, {**CHAT, "structured_outputs": {"regex": "a", "b": 1}}, ["structured_outputs.b"]),
        (ResponsesRequest, {"input": [{**USER, "a": 1}]}, ["input.a"]),
        (
            ResponsesRequest,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "a": 1}]}]},
            ["input.content.a"],
        ),
        (ResponsesRequest, {"input": "x", "text": {"a": 1, "format": {"b": 1}}}, ["text.a", "text.format.b"]),
        (ResponsesRequest, {"input": [{"type": "x", "tools": [{"type": "x", "a": 1}]}]}, ["input.tools.a"]),
        (MessagesRequest, {**MESSAGES, "thinking": {"type": "adaptive", "a": 1}}, ["thinking.a"]),
        (MessagesRequest, {**MESSAGES, "output_config": {"a": 1}}, ["output_config.a"]),
        (MessagesRequest, {**MESSAGES, "metadata": {"a": 1}}, ["metadata.a"]),
        (MessagesRequest, {**MESSAGES, "system": [{"type": "text", "text": "x", "a": 1}]}, ["system.a"]),
        (
            MessagesRequest,
            {
                "max_tokens": 1,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"a": 1, "text": "x", "type": "text"},
                            {"type": "tool_result", "content": [{"type": "text", "text": "x", "any": 1}], "b": 1},
                        ],
                    }
                ],
            },
            ["messages.content.a", "messages.content.b"],
        ),
    ],
)
def test_unknown_names_are_found_at_every_level(kind: type[Struct], body: dict[str, Any], names: list[str]) -> None:
    assert found(kind, body) == names


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": STRANGE}}]}),
        (
            ChatRequest,
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": STRANGE}}},
        ),
        (ChatRequest, {**CHAT, "structured_outputs": {"json": STRANGE}}),
        (ChatRequest, {**CHAT, "chat_template_kwargs": STRANGE, "documents": [STRANGE], "vllm_xargs": {"a": STRANGE}}),
        (ResponsesRequest, {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": STRANGE}]}),
        (ResponsesRequest, {"input": "x", "text": {"format": {"type": "json_schema", "schema": STRANGE}}}),
        (ResponsesRequest, {"input": [{"type": "local_shell_call", "action": STRANGE, "operation": STRANGE}]}),
        (MessagesRequest, {**MESSAGES, "tools": [{"name": "f", "input_schema": STRANGE}]}),
        (MessagesRequest, {**MESSAGES, "output_config": {"format": {"type": "json_schema", "schema": STRANGE}}}),
        (
            MessagesRequest,
            {
                "max_tokens": 1,
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": STRANGE}]}
                ],
            },
        ),
    ],
)
def test_schemas_and_arguments_are_the_callers_own(kind: type[Struct], body: dict[str, Any]) -> None:
    assert found(kind, body) == []


@pytest.mark.parametrize(
    ("kind", "fields", "names"),
    [
        (ChatRequest, {"verbosity": "medium", "stream_interval": 1, "prediction": None}, []),
        (ChatRequest, {"verbosity": "high", "stream_interval": 2, "prediction": {}}, None),
        (ChatRequest, {"stream_options": {"include_obfuscation": False}}, []),
        (ChatRequest, {"stream_options": {"include_obfuscation": True}}, ["stream_options.include_obfuscation"]),
        (ChatRequest, {"metadata": {}, "store": False}, ["store", "metadata"]),
        (MessagesRequest, {"max_tokens": 1, "speed": "standard", "tools": [{"defer_loading": False}]}, []),
        (MessagesRequest, {"max_tokens": 1, "speed": "fast", "tools": [{"defer_loading": True}]}, None),
    ],
)
def test_hints_are_found_where_they_ask_for_something(
    kind: type[Struct], fields: dict[str, Any], names: list[str] | None
) -> None:
    expected = (
        ["prediction", "verbosity", "stream_interval"] if kind is ChatRequest else ["tools.defer_loading", "speed"]
    )
    assert sorted(found(kind, {**CHAT, **fields})) == sorted(expected if names is None else names)


@pytest.mark.parametrize("policy", ["warn", "ignore", "refuse"])
def test_a_strict_server_refuses_hints_but_those_that_every_server_accepts(policy: Any) -> None:
    accepted = msgspec.json.encode({**CHAT, "metadata": {"a": 1}, "store": True, "service_tier": "flex"})
    refusable = msgspec.json.encode({**CHAT, "verbosity": "low"})
    fields = RequestFields(policy)
    find_ignored(accepted, ChatRequest, fields)
    assert [name for name, _ in fields.names] == (["store", "metadata", "service_tier"] if policy == "warn" else [])
    if policy == "refuse":
        with pytest.raises(RequestError, match="verbosity is not supported yet; leave it out"):
            find_ignored(refusable, ChatRequest, fields)
    else:
        find_ignored(refusable, ChatRequest, fields)


def test_what_is_said_twice_counts_as_decoders_take_it() -> None:
    assert found(ChatRequest, b'{"messages": [], "a": 1, "a": 2, "a": 3}') == ["a"]
    assert found(ChatRequest, b'{"messages": [{"role": "user", "a": 1}], "messages": []}') == []
    assert found(ChatRequest, b'{"messages": [], "verbosity": "low", "verbosity": null}') == []
    assert found(ChatRequest, b'{"messages": [], "verbosity": null, "verbosity": "low"}') == ["verbosity"]


def test_spellings_of_names_are_one() -> None:
    assert found(
        ChatRequest, b' { "m\\u0065ssages" : [ { "role" : "user" , "\\u0061" : 1 } ] , "verbosity" : null } '
    ) == ["messages.a"]
    content = b'[ {"x": 1, "typ\\u0065": "te\\u0078t", "text": "a"} ]'
    block = b'{"messages": [{"role": "user", "content": %b}], "max_tokens": 1}' % content
    assert found(MessagesRequest, block) == ["messages.content.x"]


@pytest.mark.parametrize("depth", [400, 5000])
def test_what_nobody_knows_may_be_deep_as_far_as_decoders_go(depth: int) -> None:
    body = b'{"messages": [{"role": "user", "a": ' + b"[" * depth + b"]" * depth + b"}]}"
    try:
        msgspec.json.decode(body, type=ChatRequest)
    except RecursionError:
        assert depth == 5000
    else:
        assert found(ChatRequest, body) == ["messages.a"]


def test_names_are_bounded() -> None:
    many = {f"field{number}": 1 for number in range(100_000)}
    fields = RequestFields()
    find_ignored(msgspec.json.encode({"messages": [{**USER, **many}] * 3, **many}), ChatRequest, fields)
    assert [name for name, _ in fields.names] == [f"field{number}" for number in range(MAX_NAMES)]
    assert fields.has_more


def test_names_of_many_messages_are_one_name() -> None:
    extras = {f"field{number}": number for number in range(40)}
    assert found(ChatRequest, {"messages": [{**USER, **extras}] * 50}) == [f"messages.{name}" for name in extras]


@pytest.mark.parametrize("kind", reachable(REQUESTS))
def test_every_field_that_may_be_left_out_may_be_null(kind: type[Struct]) -> None:
    types = annotations(kind)
    for field in msgspec.structs.fields(kind):
        if field.default is not NODEFAULT or field.default_factory is not NODEFAULT:
            assert msgspec.json.decode(b"null", type=types[field.encode_name]) is None


@pytest.mark.parametrize("kind", REQUESTS)
@settings(max_examples=cases(60))
@given(data=st.data())
def test_exactly_what_no_struct_knows_is_found_and_changes_nothing(kind: type[Struct], data: st.DataObject) -> None:
    body = data.draw(bodies(kind, UNKNOWN))
    encoded = msgspec.json.encode(body)
    decoded = msgspec.json.decode(encoded, type=kind)
    fields = RequestFields()
    find_ignored(encoded, kind, fields)
    names: set[str] = set()
    stripped = _known(body, kind, "", names)
    if len(names) <= MAX_NAMES:
        assert ({name for name, _ in fields.names}, fields.has_more) == (names, False)
    else:
        assert len({name for name, _ in fields.names} & names) == MAX_NAMES
    assert msgspec.json.decode(msgspec.json.encode(stripped), type=kind) == decoded


def _known(value: Any, annotation: Any, path: str, names: set[str]) -> Any:
    """The value without fields that no struct knows; their paths, and those of hints that ask, go to `names`."""
    if isinstance(value, list):
        items = [get_args(option)[0] for option in options(annotation) if get_origin(option) is list]
        return [_known(item, items[0], path, names) for item in value] if items else value
    kinds = [option for option in options(annotation) if is_struct(option)]
    tags = [option.__struct_config__.tag_field for option in kinds]
    if not isinstance(value, dict) or not kinds:
        return value
    kind = next(
        option
        for option, tag in zip(kinds, tags, strict=True)
        if tag is None or value[tag] == option.__struct_config__.tag
    )
    fields = annotations(kind)
    defaults = {
        each.encode_name: each.default if each.default_factory is NODEFAULT else each.default_factory()
        for each in msgspec.structs.fields(kind)
    }
    stripped = {}
    for name, part in value.items():
        place = f"{path}.{name}" if path else name
        if name not in fields and name != kind.__struct_config__.tag_field:
            names.add(place)
            continue
        stripped[name] = _known(part, fields[name], place, names) if name in fields else part
        if name in fields and fields[name] in (Hint, NoEffect) and part is not None and part != defaults[name]:
            names.add(place)
    return stripped
