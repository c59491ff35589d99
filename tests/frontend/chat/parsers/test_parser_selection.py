"""What a template shows of a model's own form."""

from importlib.metadata import EntryPoint

import pytest

from pyllm.config.option_reading import config_part
from pyllm.config.plugins import REASONING_PARSERS, TOOL_PARSERS
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.frontend.chat.parsers.parsed_pieces import (
    Content,
    ParsedText,
    Piece,
    ToolArguments,
    ToolCall,
    ToolCallBegin,
    folded,
)
from pyllm.frontend.chat.parsers.parser_selection import (
    Parsers,
    load_reasoning_form,
    load_tool_form,
    parsers_of,
    tool_call_parser,
)
from pyllm.frontend.chat.parsers.reasoning_parsers import REASONING_FORMS, THINK, ReasoningForm
from pyllm.frontend.chat.parsers.tool_parsers import TOOL_FORMS, ToolForm
from pyllm.frontend.chat.parsers.values.argument_types import Schemas
from pyllm.frontend.text.templates import ChatTemplate

# Sentences of the families' own templates, and of those that vLLM has for them.
SIGNS = [
    # Qwen 3
    (
        "return a json object with function name and arguments within <tool_call></tool_call> XML tags:"
        "<tool_call>{name: <function-name>, '<think></think>'",
        Parsers("hermes", "think"),
    ),
    # Qwen3-Coder and Qwen 3.5
    (
        "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>",
        Parsers("qwen3_coder", "none"),
    ),
    ("<seed:tool_call>\n<function=f>\n<parameter=a>{{ '<seed:think>' }}", Parsers("seed_oss", "seed_oss")),
    # GLM 4.5
    (
        "{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value></tool_call><think>",
        Parsers("glm45", "think"),
    ),
    ('<minimax:tool_call>\\n<invoke name="tool-name-1">', Parsers("minimax_m2", "none")),
    # Gemma 3 has no words for tools; vLLM's template for it and for Llama 3.2 has.
    (
        "Example Format: [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
        Parsers("pythonic", "none"),
    ),
    (
        "<|header_start|>system<|header_end|> Use exact format: [func_name1(param1=value1, param2=value2)]",
        Parsers("llama4_pythonic", "none"),
    ),
    # Gemma 4 and FunctionGemma
    ("'<|tool_call>call:' + function['name'] + '{' <|channel>thought\\n' <channel|>", Parsers("gemma4", "gemma4")),
    ("{{ '<start_function_call>call:' + name }}", Parsers("functiongemma", "none")),
    # Granite 3.2, 3.3 and 4
    (
        "respond with <|tool_call|> followed by a JSON list of tools used. Write your thoughts after "
        "'Here is my thought process:' and write your response after 'Here is my response:'",
        Parsers("granite", "granite"),
    ),
    ("respond only with <|tool_call|> followed by a JSON list of tools. <think></think>", Parsers("granite", "think")),
    ("{{- '<tool_call>{' }}", Parsers("hermes", "none")),
    # gpt-oss
    (
        '{{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name + "<|channel|>commentary " }}'
        '{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}',
        Parsers("openai", "openai_gptoss"),
    ),
    (
        'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
        Parsers("llama3_json", "none"),
    ),
    ("a pythonic function call wrapped in <function_calls></function_calls> XML tags", Parsers("olmo3", "none")),
    ('formatted as functools[{"name": [function name]', Parsers("phi4_mini_json", "none")),
    ("<|START_THINKING|>..<|START_ACTION|>[", Parsers("cohere_command3", "cohere_command3")),
    ("[TOOL_CALLS] [THINK]Your thoughts[/THINK]", Parsers("mistral", "mistral")),
    # DeepSeek: R1 with llama.cpp's template, V3.1, V3.2 and V4
    (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
        "example\n```json\n<think>",
        Parsers("deepseek_v3", "think"),
    ),
    (
        "'<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>' + name <think></think>",
        Parsers("deepseek_v31", "think"),
    ),
    (
        "dsml_token = '\uff5cDSML\uff5c' '<' + dsml_token + 'function_calls>' '<think>'",
        Parsers("deepseek_v32", "think"),
    ),
    ("dsml_token = '\uff5cDSML\uff5c' '<' + dsml_token + 'tool_calls>' '<think>'", Parsers("deepseek_v4", "think")),
    # Kimi K2 and K2 Thinking
    ("<|tool_calls_section_begin|><|tool_call_begin|>", Parsers("kimi_k2", "none")),
    ("<think></think><|tool_calls_section_begin|><|tool_call_begin|>", Parsers("kimi_k2", "think")),
    # MiniMax M1, and M3
    (
        'respond with <tool_calls></tool_calls> XML tags: <tool_calls>\\n{"name": <tool-name>, "arguments": <args>}',
        Parsers("minimax", "none"),
    ),
    ("']<]minimax[>[' ~ '<tool_call>' '<mm:think>' '<invoke name=\"a\">'", Parsers("minimax_m3", "minimax_m3")),
    (
        "'<tool_calls{}>' '<tool_call{}>' '<tool_sep{}>' '<arg_key{}>'.format(T) '<think{}>'",
        Parsers("hy_v3", "hy_v3"),
    ),
    ("set inner = '<|inner_prefix|>' set calls = '<|tools_prefix|>'", Parsers("apertus", "apertus")),
    (
        'within <tool_call></tool_call> XML tags <tool_calls>[{"name": <function-name-1>}] [BEGIN FINAL RESPONSE]',
        Parsers("apriel", "apriel"),
    ),
    (
        '<TOOLCALL>[{"name": "tool_name1", "arguments": "tool_args1"}]</TOOLCALL> <think>',
        Parsers("nemotron_json", "think"),
    ),
    # LFM2, LFM2.5, and its larger one
    ("List of tools: <|tool_list_start|>[", Parsers("lfm2", "none")),
    ("List of tools: [ </think>", Parsers("lfm2", "think")),
    ("List of tools: [ <|tool_call_start|>[ <think></think>", Parsers("lfm2", "think")),
    ("'role': 'function call' <|role_sep|>", Parsers("gigachat3", "none")),
    (
        '<|python_tag|> <function=example_function_name>{"example_name": "example_value"}</function>',
        Parsers("functionary_v3_1", "none"),
    ),
    # Ling 3
    ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<think>", Parsers("glm45", "think")),
]


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
        ("{% for tool in tools %}{{ tool }}{% endfor %}", Parsers("hermes", "none", explains_tools=True)),
        ("{{ m.split('</think>')[-1] }}", Parsers("hermes", "think")),
        *((f"{{% if tools %}}{{% endif %}}{{# {sign} #}}", parsers) for sign, parsers in SIGNS),
    ],
)
def test_auto_is_what_the_template_shows(source: str, parsers: Parsers) -> None:
    reads_tools = "tools" in ChatTemplate(source, "", "").variables
    assert parsers_of(source, reads_tools, "auto", "auto") == parsers
    assert parsers_of(source, reads_tools, "mistral", "none") == Parsers("mistral", "none")


def test_auto_says_which_parsers_there_are_where_the_template_shows_none(caplog: pytest.LogCaptureFixture) -> None:
    assert parsers_of("{{ tools }}", True, "auto", "none").explains_tools
    (record,) = caplog.records
    assert "--tool-call-parser" in record.getMessage()
    assert all(name in record.getMessage() for name in TOOL_FORMS)
    caplog.clear()
    assert parsers_of("{{ tools }}", True, "none", "none").tool_call == "none"
    assert not caplog.records


def test_both_parsers_of_harmony_go_together() -> None:
    both = Parsers("openai", "openai_gptoss")
    assert parsers_of("", False, "openai", "auto") == parsers_of("", False, "auto", "openai_gptoss") == both
    assert parsers_of("", False, "openai", "none") == Parsers("openai", "none")


def tool_entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, TOOL_PARSERS)


def reasoning_entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, REASONING_PARSERS)


OURS = "tests.frontend.chat.parsers.test_parser_selection"
SHOUTED = ReasoningForm(("<HM>",), ("</HM>",))
NAMELESS = ReasoningForm(("<HM>",), ("",))


def test_packages_add_forms_and_replace_none() -> None:
    hermes = f"{OURS}:TOOL_FORMS"
    assert load_tool_form("hermes", [tool_entry("hermes", hermes)]) is TOOL_FORMS["hermes"]
    assert load_reasoning_form("think", [reasoning_entry("think", hermes)]) is THINK
    tagged = tool_entry("mine", "pyllm.frontend.chat.parsers.tool_parsers:_GLM")
    assert load_tool_form("mine", [tagged]).style == "tagged"
    assert load_reasoning_form("hm", [reasoning_entry("hm", f"{OURS}:SHOUTED")]) == SHOUTED


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:form", "cannot be imported: No module named 'no_such_module'"),
        ("math:pi", "is 3.14.* not a (Tool|Reasoning)Form"),
        (f"{OURS}:NAMELESS", "lacks a marker|not a ToolForm"),
    ],
)
def test_what_is_no_form_is_a_configuration_error(value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_tool_form("odd", [tool_entry("odd", value)])
    with pytest.raises(ConfigError, match=text):
        load_reasoning_form("odd", [reasoning_entry("odd", value)])


def test_a_wrong_name_is_refused_with_those_that_there_are() -> None:
    for load, forms in ((load_tool_form, TOOL_FORMS), (load_reasoning_form, REASONING_FORMS)):
        with pytest.raises(ConfigError, match=f"there is no .* parser 'x'; there are {next(iter(forms))}"):
            load("x", [])
    with pytest.raises(ConfigError, match="x:a and x:b"):
        load_tool_form("x", [tool_entry("x", "x:a"), tool_entry("x", "x:b")])
    for name in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=r"there is no .* parser 'hermess'; there are auto, none"):
            config_part(ServerConfig, {name: "hermess"})
        assert config_part(ServerConfig, {name: "glm45"}) == ServerConfig(**{name: "glm45"})


def test_none_has_no_machine() -> None:
    assert tool_call_parser("none") is None


class Bangs:
    """The parser of docs/tools.md: a whole answer `!f {...}` is a call of f."""

    def __init__(self, schemas: Schemas) -> None:
        self._text = ""
        assert "f" in schemas

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        return []

    def finish(self) -> list[Piece]:
        name, _, arguments = self._text[1:].partition(" ")
        if not self._text.startswith("!"):
            return [Content(self._text)]
        return [ToolCallBegin(0, name), ToolArguments(0, arguments)]


BANGS = ToolForm(make_parser=Bangs)


@pytest.mark.parametrize(("text", "is_call"), [('!f {"a": 1}', True), ("Hello!", False)])
def test_a_form_of_a_package_makes_parsers(text: str, is_call: bool) -> None:
    form = load_tool_form("bangs", [tool_entry("bangs", f"{OURS}:BANGS")])
    parser = form.make_parser({"f": {}})
    whole = folded([*parser.feed(text), *parser.finish()])
    assert whole == (ParsedText("", "", [ToolCall("f", '{"a": 1}')]) if is_call else ParsedText(text))
