"""What a template shows of a model's own form."""

import pytest

from pyllm.frontend.chat.parsers.parser_selection import Parsers, parsers_of, tool_call_parser
from pyllm.frontend.text.templates import ChatTemplate


@pytest.mark.parametrize(
    ("source", "parsers"),
    [
        ("", Parsers("hermes", "none")),
        ("{% if tools %}<tool_call>{% endif %}", Parsers("hermes", "none")),
        ("{% if tools %}<tool_call>{% endif %}{{ '<think>' }}", Parsers("hermes", "think")),
        ("{% if tools is defined %}{{ '[TOOL_CALLS]' }}{% endif %}", Parsers("mistral", "none")),
        # Llama 3's own gives the variable a value where it has none.
        (
            "{% if not tools is defined %}{% set tools = none %}{% endif %}"
            "{% if tools is not none %}{{ '<|python_tag|>' }}{% endif %}",
            Parsers("llama3_json", "none"),
        ),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", Parsers("none", "none")),
        ("{{ m.split('</think>')[-1] }}", Parsers("hermes", "think")),
    ],
)
def test_auto_is_what_the_template_shows(source: str, parsers: Parsers) -> None:
    reads_tools = "tools" in ChatTemplate(source, "", "").variables
    assert parsers_of(source, reads_tools, "auto", "auto") == parsers
    assert parsers_of(source, reads_tools, "mistral", "none") == Parsers("mistral", "none")


def test_none_has_no_machine() -> None:
    assert tool_call_parser("none") is None
