"""Templates run in a sandbox, with what transformers gives them."""

import json

import pytest

from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.templates import MAX_CHARACTERS, ChatTemplate

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim"
    " + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def render(source: str, *messages: dict[str, str], **options: bool) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or [USER], **options)


def test_a_conversation_becomes_a_prompt() -> None:
    assert render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_the_last_message_can_be_continued() -> None:
    messages = [USER, {"role": "assistant", "content": "Well, Hi"}]
    text = render(CHATML, *messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nWell, Hi")
    with pytest.raises(RequestError, match="leaves the last message out"):
        render("{{ messages[0].role }}", *messages, continue_final_message=True)


def test_blocks_leave_no_blank_lines() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


def test_the_environment_is_that_of_transformers() -> None:
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == json.dumps([1], indent=2)
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"
    assert render("{{ tools is none and documents is none }}") == "True"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_a_template_can_refuse_messages() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.clear() }}",
        "{{ (messages | attr('append'))(1) }}",
        "{{ messages[0].update({}) }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ ''.__class__.__init__.__globals__ }}",
    ],
)
def test_what_the_sandbox_forbids_is_the_requests_fault_and_nothing_more(source: str) -> None:
    template = ChatTemplate(source, "<s>", "</s>")
    with pytest.raises(RequestError, match="chat template refuses"):
        template.render([USER])


def test_a_template_may_fill_and_empty_a_list_that_is_not_the_callers() -> None:
    messages = [USER]
    source = "{% set l = [] %}{% set _ = l.append('a') %}{{ l.pop(0) }}{{ messages.pop().content }}"
    assert ChatTemplate(source, "", "").render(messages) == f"a{USER['content']}"
    assert messages == [USER]
    tools = [{"required": ["city"]}]
    emptied = ChatTemplate("{{ tools[0].required.pop() }}", "", "")
    for _ in range(2):
        assert emptied.render(messages, variables={"tools": tools}) == "city"
    assert tools == [{"required": ["city"]}]


def test_output_is_bounded() -> None:
    with pytest.raises(RequestError, match=str(MAX_CHARACTERS)):
        render("{% for i in range(1000) %}{{ 'x' * 100000 }}{% endfor %}")


def test_tools_may_have_a_template_of_their_own() -> None:
    template = ChatTemplate("plain", "<s>", "</s>", "{{ bos_token }}{{ tools | length }}")
    assert template.for_tools(None).render([USER]) == template.for_tools([]).render([USER]) == "plain"
    assert template.for_tools([{}]).render([USER], variables={"tools": [{}]}) == "<s>1"
    alone = ChatTemplate("plain", "", "")
    assert alone.for_tools([{}]) is alone


def test_firefunctions_names_are_known() -> None:
    template = ChatTemplate("{{ functions }} {{ datetime | length }}", "", "")
    assert template.render([USER], variables={"tools": []}) == "[] 16"


def test_a_template_that_does_not_compile_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% if %}", "<s>", "</s>")
