"""Conversations of every shape are whole in the prompts of templates that lack something."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.chat.message_shapes import Shaped, plainest, shaped
from pyllm.frontend.chat.template_traits import TemplateTraits, template_traits
from pyllm.frontend.text.templates import ChatTemplate
from tests.frontend.chat.conversations import (
    BARE_TOOL,
    FIRST,
    SECOND,
    SHAPES,
    TOOL,
    Message,
    assistant,
    calls,
    missing,
    result,
    system,
    user,
)
from tests.frontend.chat.small_templates import SMALL_TEMPLATES

ASKED: list[Any] = [{"role": "user", "content": "x"}]
LOOP: dict[str, Any] = {}
LOOP["loop"] = LOOP
TEMPLATES = {name: ChatTemplate(small.source, "<s>", "</s>") for name, small in SMALL_TEMPLATES.items()}
TOOLS = [TOOL, BARE_TOOL]


def rendered(name: str, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[str, Shaped]:
    """The prompt of a small template, with what was changed for it."""
    template = TEMPLATES[name]
    traits = template_traits(template, bool(tools))
    shape = shaped(messages, tools, traits)
    return template.render(shape.messages, variables={"tools": shape.tools}), shape


def lacking(*names: str) -> TemplateTraits:
    return TemplateTraits(**dict.fromkeys(names, False))


def roles(shape: Shaped) -> str:
    """The first letters of the roles; those of calls are capital."""
    return "".join("A" if message.get("tool_calls") else message["role"][0] for message in shape.messages)


@pytest.mark.parametrize("name", SMALL_TEMPLATES)
def test_probes_find_what_a_template_lacks(name: str) -> None:
    traits = template_traits(TEMPLATES[name], True)
    assert {trait for trait in traits.__struct_fields__ if not getattr(traits, trait)} == SMALL_TEMPLATES[name].lacks
    without = template_traits(TEMPLATES[name], False)
    assert without.no_tools == (name != "tools_needed")
    assert without.system == traits.system


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SMALL_TEMPLATES)
def test_no_word_is_lost(name: str, shape: str, tools: list[dict[str, Any]]) -> None:
    prompt, _ = rendered(name, SHAPES[shape], tools)
    assert missing(SHAPES[shape], tools, prompt) == []


@pytest.mark.parametrize("name", SMALL_TEMPLATES)
def test_the_plainest_form_is_whole_everywhere(name: str) -> None:
    for messages in SHAPES.values():
        shape = plainest(messages, TOOLS, template_traits(TEMPLATES[name], True))
        assert missing(messages, TOOLS, TEMPLATES[name].render(shape.messages, variables={"tools": shape.tools})) == []


TURNS = st.lists(
    st.one_of(
        st.builds(lambda: [user("another question"), assistant("another answer")]),
        st.builds(lambda: [user("find it"), calls(FIRST), result(FIRST), assistant("found")]),
        st.builds(lambda: [user("both"), calls(FIRST, SECOND, text="so"), result(SECOND), result(FIRST), user("q")]),
        st.builds(lambda: [system("a late rule"), user("go on"), assistant("gone on")]),
        st.builds(lambda: [user("go on"), system("a note", "developer"), assistant("noted")]),
        st.builds(lambda: [calls(FIRST), result(FIRST), system("a note"), assistant("noted")]),
    ),
    min_size=2,
    max_size=6,
)


# Of Mistral Nemo the template itself takes the system message from turn to turn.
@given(TURNS, st.sampled_from([name for name in SMALL_TEMPLATES if name != "system_last"]), st.booleans())
def test_what_an_answered_turn_became_stays(turns: list[list[Message]], name: str, with_tools: bool) -> None:
    """So a conversation that goes on finds its beginning in the prefix cache, late system messages or not."""
    traits = template_traits(TEMPLATES[name], with_tools)
    opening = [system(), user("begin"), assistant("begun")]
    history: list[Message] = []
    for turn in turns:
        before = [*opening, *history]
        history += turn
        first = shaped(before, TOOLS if with_tools else [], traits).messages
        then = shaped([*opening, *history], TOOLS if with_tools else [], traits).messages
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, then, strict=False))))
        assert same >= len(first) - 1  # What comes next may join the last message.


def test_what_a_template_renders_is_left_alone() -> None:
    for messages in SHAPES.values():
        shape = shaped(messages, TOOLS, TemplateTraits())
        assert shape.adjusted == () or messages in (SHAPES["two calls"], SHAPES["two calls, answered"])
        assert shape.messages is messages or shape.adjusted == ("call_order",)


def test_results_are_in_the_order_of_their_calls() -> None:
    other = result("another")
    messages = [calls(FIRST, SECOND), other, result(SECOND), result(FIRST), user()]
    shape = shaped(messages, None, TemplateTraits())
    assert shape.messages == [messages[0], result(FIRST), result(SECOND), other, user()]


def test_late_system_text_stays_where_it_is_once_there_is_an_answer() -> None:
    traits = lacking("late_system")
    early = shaped([user("q"), system("rule"), user("r")], None, traits)
    assert early.messages == [system("rule"), user("q"), user("r")]
    joined = shaped([system("one"), user("q"), system("two", "developer")], None, traits)
    assert joined.messages == [system("one\n\ntwo"), user("q")]
    late = shaped([user("q"), assistant("a"), system("rule"), user("r")], None, traits)
    assert late.messages == [user("q"), assistant("a"), user("rule"), user("r")]
    assert late.adjusted == ("late_system",)


@pytest.mark.parametrize(
    ("lacks", "messages", "expected"),
    [
        (("developer",), [system("d", "developer"), user("q")], [system("d"), user("q")]),
        (("two_systems",), [system("a"), system("b", "developer"), user("q")], [system("a\n\nb"), user("q")]),
        (("system",), [system("a"), user("q")], [user("a"), user("q")]),
        (("system", "two_users"), [system("a"), user("q")], [user("a\n\nq")]),
        (("two_assistants",), [user("q"), assistant("a"), assistant("b")], [user("q"), assistant("a\n\nb")]),
        (("assistant_first",), [system("s"), assistant("a")], [system("s"), user(""), assistant("a")]),
        (("no_user",), [system("s")], [system("s"), user("")]),
        (("user_after_result",), [result(FIRST), user("q")], [{**result(FIRST), "content": "sun over 6a5b4\n\nq"}]),
        (("result_alone",), [result(FIRST)], [user("<tool_response>\nsun over 6a5b4\n</tool_response>")]),
    ],
)
def test_each_trait_has_its_form(lacks: tuple[str, ...], messages: list[Message], expected: list[Message]) -> None:
    shape = shaped(messages, None, lacking(*lacks))
    assert shape.messages == expected
    assert set(shape.adjusted) == set(lacks)


def test_several_calls_become_single_ones_with_their_results() -> None:
    messages = [user(), calls(FIRST, SECOND, text="so"), result(FIRST), result(SECOND), assistant()]
    assert roles(shaped(messages, None, lacking("several_calls"))) == "uAtAta"
    shape = shaped(messages, None, lacking("several_calls", "text_with_call"))
    assert roles(shape) == "uaAtAta"
    assert [message["content"] for message in shape.messages[1:4]] == ["so", "", "sun over 6a5b4"]
    shape = shaped(messages, None, lacking("text_with_call", "text_before_call"))
    assert roles(shape) == "uauAtta"


def test_calls_without_an_answer_are_text_unless_they_are_the_last_message() -> None:
    traits = lacking("unanswered_call")
    shape = shaped([user(), calls(FIRST, text="so"), user("stop")], None, traits, "mistral")
    assert roles(shape) == "uau"
    assert shape.messages[1]["content"] == 'so\n[TOOL_CALLS]find_weather[ARGS]{"city": "town 6a5b4"}'
    assert roles(shaped([user(), calls(FIRST)], None, traits)) == "uA"


def test_a_user_who_did_not_wait_says_nothing_for_a_tool() -> None:
    messages = [user(), calls(FIRST), user("stop"), assistant(), user("more")]
    prompt, shape = rendered("short_ids", messages, TOOLS)
    assert "<|tool|>" not in prompt
    assert roles(shape) == "uauau"


def test_late_results_go_back_to_their_calls() -> None:
    first, second = result(FIRST), result(SECOND)
    traits = lacking("late_result")
    shape = shaped([user(), calls(FIRST), calls(SECOND), second, user("q"), first, assistant()], None, traits)
    assert shape.messages == [user(), calls(FIRST), first, calls(SECOND), second, user("q"), assistant()]
    shape = shaped([calls(FIRST), first, calls(FIRST), user("q"), second, first], None, traits)
    assert shape.messages == [calls(FIRST), first, calls(FIRST), first, user("q"), second]


def test_calls_with_one_id_keep_their_results() -> None:
    rain = {**result(FIRST), "content": "rain"}
    shape = shaped([calls(FIRST, FIRST), result(FIRST), rain], None, lacking("several_calls"))
    assert shape.messages == [calls(FIRST), result(FIRST), calls(FIRST), rain]


def test_reasoning_stays_with_the_call_whose_text_is_apart() -> None:
    thought = {**calls(FIRST, text="let me see"), "reasoning": "hm", "reasoning_content": "hm"}
    prompt, shape = rendered("developer_first", [user(), thought, result(FIRST)], TOOLS)
    assert roles(shape) == "uaAt"
    assert prompt.index("let me see") < prompt.index("hm") < prompt.index("find_weather", prompt.index("hm"))


@pytest.mark.parametrize("text", ["", "an answer"])
def test_reasoning_is_a_part_of_the_content_where_a_template_has_it_there(text: str) -> None:
    thought = {**assistant(text), "reasoning": "hm"}
    prompt, shape = rendered("thinking_parts", [user(), thought, user("more")], [])
    assert f"hm{text}" in prompt
    assert shape.adjusted == ("reasoning_field",)


def test_tags_of_channels_are_words() -> None:
    prompt, shape = rendered("developer_first", [user(), assistant("<|channel|>final<|message|>x"), user("more")], [])
    assert "<| channel |>final<|message|>x" in prompt
    assert shape.adjusted == ("channel_tags",)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=8, unique=True))
def test_foreign_ids_become_short_ones_one_to_one(ids: list[str]) -> None:
    messages = [calls(*ids), *map(result, ids)]
    called, *results = shaped(messages, None, lacking("call_ids")).messages
    short = [call["id"] for call in called["tool_calls"]]
    assert short == [each["tool_call_id"] for each in results]
    assert len(set(short)) == len(ids)
    assert all(len(each) == 9 and each.isalnum() for each in short)


def test_arguments_and_contents_in_the_types_that_a_template_wants() -> None:
    (message,) = shaped([calls(FIRST)], None, lacking("object_arguments")).messages
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "town 6a5b4"}'
    thought = {**calls(FIRST), "reasoning": "hm", "reasoning_content": "hm"}
    (message,) = shaped([thought], None, lacking("reasoning")).messages
    assert message == {**thought, "thinking": "hm"}
    (message,) = shaped([user("q")], None, lacking("text_content")).messages
    assert message["content"] == [{"type": "text", "text": "q"}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "find_weather", "arguments": {"city": "town 6a5b4"}}\n</tool_call>'),
        ("granite", '<|tool_call|>[{"name": "find_weather", "arguments": {"city": "town 6a5b4"}}]'),
    ],
)
def test_calls_in_words_are_written_as_the_model_writes_them(kind: str, text: str) -> None:
    (message,) = shaped([calls(FIRST, text="so")], None, lacking("tool_calls"), kind).messages
    assert message == assistant(f"so\n{text}")


def test_tools_get_what_a_template_reads_of_them() -> None:
    shape = shaped(ASKED, [TOOL, BARE_TOOL], lacking("tool_descriptions"))
    assert shape.tools is not None
    assert shape.tools[0] == TOOL
    assert shape.tools[1]["function"] == {
        "name": "ring_bell",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


def test_a_template_that_leaves_tools_out_gets_them_in_words() -> None:
    (system, question), tools, adjusted = shaped(ASKED, [TOOL], lacking("tools"))
    assert (tools, adjusted) == (None, ("tools",))
    assert system["role"] == "system"
    assert json.dumps(TOOL) in system["content"]
    assert question == ASKED[0]


@pytest.mark.parametrize(("lacks", "shown"), [((), None), (("no_tools",), [])])
def test_a_template_that_needs_a_list_of_tools_gets_an_empty_one(lacks: tuple[str, ...], shown: object) -> None:
    assert shaped(ASKED, None, lacking(*lacks)).tools == shown
    assert shaped(ASKED, [], lacking(*lacks)).tools == shown
    assert shaped(ASKED, [TOOL], lacking("tools", *lacks)).tools == shown


@pytest.mark.parametrize("tool", [LOOP, {"type": object()}, {"type": float("nan"), "a": LOOP}])
def test_a_tool_that_is_no_json_is_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="tools cannot be written as JSON"):
        shaped(ASKED, [tool], lacking("tools"))
    assert shaped(ASKED, [tool], lacking("tool_descriptions")).tools == [tool]
