"""What models write, well and badly, for each parser: a text, and what it is made of."""

import json
from typing import NamedTuple

from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, ToolCall


class Case(NamedTuple):
    """One sample's text, and the whole of what a parser makes of it."""

    text: str
    whole: ParsedText


def case(text: str, content: str = "", *calls: tuple[str, str], reasoning: str = "") -> Case:
    return Case(text, ParsedText(content, reasoning, [ToolCall(*call) for call in calls]))


PLAIN = ["", "Hello 🙂 world", " \n a < b > c \n\n", "<tool", "{", '{"a": [1, 2]}', "</tool_call>", "\u00a0x "]

NESTED = '{"a": {"b": [1, -2.5e+3, {"}": "{"}]}, "q": "\\"\\\\}{\\u00e9🙂", "n": null, "t": true}'
WEATHER = '{"city": "Paris"}'

HERMES = [
    *(case(text, text) for text in PLAIN),
    case(f'<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>', "", ("f", WEATHER)),
    case(f'<tool_call>{{"name":"f","arguments":{NESTED}}}</tool_call>', "", ("f", NESTED)),
    case(f'<tool_call>{{"arguments": {NESTED}, "name": "f"}}</tool_call>', "", ("f", NESTED)),
    case('<tool_call>{"id": [{}], "name": "f", "arguments": { }, "x": 12}</tool_call>', "", ("f", "{ }")),
    case('<tool_call>{"name": "g"}</tool_call>', "", ("g", "{}")),
    case(
        f'So: \n\n<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n',
        "So:",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case('a<tool_call>{"name": "f", "arguments": {}}</tool_call> \n b ', "a b ", ("f", "{}")),
    # Between content the space before calls is kept, or the first character of that behind them.
    case('text <tool_call>{"name": "f"}</tool_call> more', "text more", ("f", "{}")),
    case(
        'a\n\n<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>\nb <tool_call>{"name": "h"} ',
        "a\n\nb",
        ("f", "{}"),
        ("g", "{}"),
        ("h", "{}"),
    ),
    case('a <tool_call>{"name": "f"}</tool_call> <tool_call>b', "a <tool_call>b", ("f", "{}")),
    case(' <tool_call>{"name": "f"}</tool_call>\nb', "b", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {}}', "", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {}} then', "then", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {}}\n</tool_cat>', "</tool_cat>", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {"a": "un', "", ("f", '{"a": "un')),
    # What cannot be read is the arguments' up to the closing, the next call or the end.
    case('<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>', "", ("f", '{"a": oops}}')),
    case(
        'a<tool_call>{"name": "f", "arguments": {"a": "say "hi" <x>"}}\n</tool_call>\nb',
        "a\nb",
        ("f", '{"a": "say "hi" <x>"}}'),
    ),
    case(
        '<tool_call>{"name": "f", "arguments": {"a": oops}}\n<tool_call>{"name": "g"}</tool_call>',
        "",
        ("f", '{"a": oops}}'),
        ("g", "{}"),
    ),
    case(
        '<tool_call>{"name": "f", "arguments": {"a": oops <tool_call> b}} </tool_',
        "",
        ("f", '{"a": oops <tool_call> b}} </tool_'),
    ),
    case('<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>', "", ("f", '{"a": 1}')),
    # Where only its end is missing that is added, unless what follows is no call.
    case('<tool_call>{"name": "f", "arguments": {"a": {"b": 1</tool_call>', "", ("f", '{"a": {"b": 1}}')),
    case(
        '<tool_call>{"name": "f", "arguments": {"a": 1<tool_call>{"name": "g"}</tool_call>',
        "",
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ),
    case('<tool_call>{"name": "f", "arguments": {"a": 1<tool_call> b}}', "", ("f", '{"a": 1<tool_call> b}}')),
    case('<tool_call>{"name": "f", "arguments": {"a": 1] ', "", ("f", '{"a": 1] ')),
    # What can be mended is.
    case(
        '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty\x01", "b": "C:\\path \\d+ \\u12"}}</tool_call>',
        "",
        ("f", '{"a": "x\\n\\ty\\u0001", "b": "C:\\\\path \\\\d+ \\\\u12"}'),
    ),
    case(
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2, ], "b": {"c": 3,},\n}, }</tool_call>',
        "",
        ("f", '{"a": [1, 2 ], "b": {"c": 3}\n}'),
    ),
    case('<tool_call>{"name": "f", "arguments": {"a": "x\\', "", ("f", '{"a": "x\\')),
    case('<tool_call>{"name": "f", "arguments": {"a": 1, ', "", ("f", '{"a": 1, ')),
    case('<tool_call>{"name": "f",}</tool_call>', "", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> b', "b", ("f", '{"a": 1}')),
    # Arguments as a string are read as the object in it.
    case('<tool_call>{"name": "f", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", ("f", WEATHER)),
    case('<tool_call>{"arguments": " {\\"a\\": 1}", "name": "f"}</tool_call>', "", ("f", '{"a": 1}')),
    case(
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"C:\\\\path\\n\\ud83d\\ude00\\",}"}</tool_call>',
        "",
        ("f", '{"a": "C:\\\\path\\n😀"}'),
    ),
    case('<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": "{\\"a\\": oops}"}</tool_call>', "", ("f", '{"a": oops}')),
    case('<tool_call>{"name": "f", "arguments": "{\\"a', "", ("f", '{"a')),
    case('<tool_call>{"name": "f", "arguments": "{"a": 1}"}</tool_call>', "", ("f", '{a": 1}"}')),
    # Several calls in one tag, a list, and a code fence.
    case(
        '<tool_call>{"name": "f", "arguments": {}}\n{"name": "g"}, {"name": "h"}</tool_call>',
        "",
        ("f", "{}"),
        ("g", "{}"),
        ("h", "{}"),
    ),
    case('<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"},]</tool_call>b', "b", ("f", "{}"), ("g", "{}")),
    case('<tool_call>\n```json\n{"name": "f"}\n```\n</tool_call>b', "b", ("f", "{}")),
    case('<tool_call>```\n[{"name": "f"}]```</tool_call>', "", ("f", "{}")),
    case('<tool_call>```{"name": "f"}</tool_call>', "", ("f", "{}")),
    case('<tool_call>{"name": "f"} {"nam": 1}</tool_call>', '{"nam": 1}', ("f", "{}")),
    case('<tool_call>```{"name": "f"} `x', "`x", ("f", "{}")),
    case('<tool_call>{"name": "f", "arguments": {}, oops</tool_call>', ", oops", ("f", "{}")),
    # What is no call is content as it was written.
    *(
        case(text, text)
        for text in (
            "<tool_call>",
            "a \n<tool_call>\n hm",
            "x <tool_call>{}</tool_call> y",
            '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
            '<tool_call>{"name": "", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            '<tool_call>{"arguments": {}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": "Paris"}</tool_call>',
            "<tool_call>[]</tool_call>",
            "<tool_call>[3]</tool_call>",
            "<tool_call>```json\nno```</tool_call>",
            '<tool_call>``{"name": "f"',
            '<tool_call>{"name": "f" </tool_call>',
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "<tool_call>{'name': 'f'}</tool_call>",
            '<tool_call>{"name": "f",,}</tool_call>',
            '<tool_call>{"name": "f" "arguments": {}}',
            '<tool_call>["name"]',
            '<tool_call>{"name": "f", "name": "g"}',
            '{"name": "f", "arguments": {}}',
            "<tool_ call>",
            "<<tool_cal",
            '<tool_call>{"a": "<tool_call>',
        )
    ),
    case('<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", ("f", "{}")),
    case('<tool_call>{"x": 1 <tool_call>{"name": "f"}', '<tool_call>{"x": 1', ("f", "{}")),
    case('<tool_call>{"a": "<tool_call>{"name": "f"}', '<tool_call>{"a": "', ("f", "{}")),
    case('<tool_call>{"name": "f"}\n<tool_call>{"name": "g"}', "", ("f", "{}"), ("g", "{}")),
]

# Of the tools f and g.
LLAMA = [
    *(case(text, text) for text in PLAIN),
    case(f'{{"name": "f", "parameters": {NESTED}}}', "", ("f", NESTED)),
    case(f'\n {{"type": "function", "name": "f", "arguments": {WEATHER}}}\n', "", ("f", WEATHER)),
    case(f'{{"parameters": {WEATHER}, "name": "f"}}', "", ("f", WEATHER)),
    case('{"name": "f", "parameters": "{\\"city\\": \\"Paris\\"}"}', "", ("f", WEATHER)),
    case(f'<|python_tag|>{{"name": "h", "parameters": {WEATHER}}}', "", ("h", WEATHER)),
    case('<|python_tag|>{"name": "h"}; {"name": "f"}', "", ("h", "{}"), ("f", "{}")),
    *(
        case(f'{{"name": "f", "parameters": {{}}}}{between}{{"name": "g", "arguments": {{}}}}', "", *calls)
        for between in ("; ", ",", "\n", " ;\n", "")
        for calls in [(("f", "{}"), ("g", "{}"))]
    ),
    case('{"name": "f", "parameters": {}} and more', "and more", ("f", "{}")),
    case('{"name": "f", "parameters": {}}; and more', "; and more", ("f", "{}")),
    case('{"name": "f", "parameters": {}};', ";", ("f", "{}")),
    case('{"name": "f", "parameters": {}}; {"name": "g"}', '; {"name": "g"}', ("f", "{}")),
    case('{"name": "f", "parameters": {}} {"a": 1}', '{"a": 1}', ("f", "{}")),
    case('Here is the result: {"name": "f", "parameters": {}}', "Here is the result:", ("f", "{}")),
    case('{"a": {}} {"name": "f", "parameters": {}}', '{"a": {}}', ("f", "{}")),
    case('See: <|python_tag|>{"name": "f"}', "See:", ("f", "{}")),
    case('{"name": "f", "parameters": {"a": "say "hi""}}\nb', "", ("f", '{"a": "say "hi""}}\nb')),
    case('{"name": "f", "parameters": {"a": "C:\\p\n",}}', "", ("f", '{"a": "C:\\\\p\\n"}')),
    case('{"name": "f", "parameters": {"a": 1 {"b": 2}}}', "", ("f", '{"a": 1 {"b": 2}}}')),
    case(
        '{"name": "f", "parameters": {}}; x {"name": "g", "parameters": {}}',
        "; x",
        ("f", "{}"),
        ("g", "{}"),
    ),
    # Other objects are content, and what stands in them, too.
    *(
        case(text, text)
        for text in (
            '{"name": "Alice", "age": 3}',
            '{"name": "Alice", "parameters": {}}',
            '{"name": "f"}',
            '{"name": "f"};',
            '{"name": "f"}{"name": "g"}',
            '{"name": "f", "parameters": 4}',
            '{"name": "f", "parameters": "Paris"}',
            '{"name": "f", "parameters": null}',
            '{"steps": [{"name": "f", "parameters": {}}], "n": 1}',
            '{"age": 3, "name": "f", "parameters": {}}',
            '{"a": "{"',
            'x {"name": "f"}',
            'if (x) { return {"a": 1}; }',
            ' {"age": 3} ',
            '<|python_tag|>search("x")',
        )
    ),
]

MISTRAL = [
    *(case(text, text) for text in PLAIN),
    case(f'[TOOL_CALLS] [{{"name": "f", "arguments": {NESTED}}}]', "", ("f", NESTED)),
    case(
        f'Ok. [TOOL_CALLS][{{"name": "f", "arguments": {WEATHER}, "id": "abc"}}, {{"name": "g"}} ]\n done',
        "Ok. done",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case(f"[TOOL_CALLS]f[ARGS]{NESTED}", "", ("f", NESTED)),
    case(f"[TOOL_CALLS]f{WEATHER}[TOOL_CALLS]g-2.x [ARGS] {{}}", "", ("f", WEATHER), ("g-2.x", "{}")),
    case(f"[TOOL_CALLS]f[CALL_ID]a1B[ARGS]{WEATHER}tail", "tail", ("f", WEATHER)),
    case('[TOOL_CALLS]f{"a": x} y[TOOL_CALLS]g{}', "", ("f", '{"a": x} y'), ("g", "{}")),
    case('[TOOL_CALLS]f[ARGS]{"a": "\\d\n",}', "", ("f", '{"a": "\\\\d\\n"}')),
    case('[TOOL_CALLS]f[ARGS]{"a": 1,', "", ("f", '{"a": 1,')),
    case(f"[TOOL_CALLS]f[ARGS]{json.dumps(NESTED)}tail", "tail", ("f", NESTED)),
    case('[TOOL_CALLS]f " {\\"a', "", ("f", '{"a')),
    case('[TOOL_CALLS]f[ARGS]"{"a": 1}"[TOOL_CALLS]g{}', "", ("f", '{a": 1}"'), ("g", "{}")),
    case(
        '[TOOL_CALLS][{"name": "f", "arguments": "{\\"a\\": 1}"}, {"name": "g", "arguments": {"a": x}}] y',
        "",
        ("f", '{"a": 1}'),
        ("g", '{"a": x}}] y'),
    ),
    case('[TOOL_CALLS][{"name": "f"}, {"nam": 1}] x', ', {"nam": 1}] x', ("f", "{}")),
    case('[TOOL_CALLS][{"name": "f"}; x', "; x", ("f", "{}")),
    case('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1', "", ("f", '{"a": 1')),
    *(
        case(text, text)
        for text in (
            "[TOOL_CALLS]",
            "[TOOL_CALLS][]",
            "[TOOL_CALLS] nothing, really",
            "[TOOL_CALLS]f[OTHER]{}",
            '[TOOL_CALLS]f[ARGS]"Paris"',
            '[TOOL_CALLS]f[ARGS]" "',
            '[TOOL_CALLS]f[ARGS]" ',
            "[TOOL_CALLS]{}",
            "[TOOL_CALLS]" + "f" * 300 + "{}",
            "[TOOL_CALL]f{}",
        )
    ),
]

LIST = [
    case(f'[{{"name": "f", "parameters": {NESTED}}}]', "", ("f", NESTED)),
    case('[{"name": "f", "parameters": {}}, {"name": "g", "parameters": {}}]', "", ("f", "{}"), ("g", "{}")),
    case('[{"name": "f", "parameters": {"a": 1', "", ("f", '{"a": 1')),
    case('[{"name": "f', '[{"name": "f'),
    case("[", "["),
    case("Hello", "Hello"),
]

# Where all of it is calls or content, by its beginning.
HERMES_OR_CONTENT = [
    *(case(text, text) for text in PLAIN),
    case('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "", ("f", "{}")),
    *(
        case(text, text)
        for text in (
            'a<tool_call>{"name": "f"}</tool_call>',
            ' <tool_call>{"name": "f"}</tool_call>',
            '{"a": "b <tool_call>"}',
            "<tool_call>tea",
        )
    ),
    *(
        case(text)
        for text in ("<tool_call>", '<tool_call>\n{"name', '<tool_call>\n{"name": "f"')  # cut off
    ),
    case('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_ca', "", ("f", "{}")),
    case('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool', "", ("f", "{}")),
]

MISTRAL_OR_CONTENT = [
    *(case(text, text) for text in PLAIN),
    case(f"[TOOL_CALLS]f[ARGS]{NESTED}", "", ("f", NESTED)),
    case('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', "", ("f", "{}")),
    case('["[TOOL_CALLS]", {"f": {}}]', '["[TOOL_CALLS]", {"f": {}}]'),
    case("x[TOOL_CALLS]f{}", "x[TOOL_CALLS]f{}"),
]

LLAMA_OR_CONTENT = [
    *(case(text, text) for text in PLAIN),
    case('<|python_tag|>{"name": "f", "parameters": {}}', "", ("f", "{}")),
    case('{"name": "f", "parameters": {}}', '{"name": "f", "parameters": {}}'),
    case('x<|python_tag|>{"name": "f"}', 'x<|python_tag|>{"name": "f"}'),
]

# Where calls of f and g need no marker.
BARE_LLAMA_OR_CONTENT = [
    *(case(text, text) for text in PLAIN),
    case(f'{{"name": "f", "parameters": {NESTED}}}', "", ("f", NESTED)),
    case('{"name": "f", "arguments": {}}; {"name": "g", "parameters": {}}', "", ("f", "{}"), ("g", "{}")),
    case('<|python_tag|>{"name": "f", "parameters": {}}', "", ("f", "{}")),
    *(
        case(text, text)
        for text in (
            '{"name": "f"}',
            '{"name": "Bo", "parameters": {}}',
            '{"name": "f", "parameters": 3}',
            '{"name": "f", "age": 3, "parameters": {}}',
            '{"parameters": {}, "name": "f"}',
            '{"type": "function", "name": "f", "parameters": {}}',
            ' {"name": "f", "parameters": {}}',
            "[1, {}]",
        )
    ),
]

# Where the model opens its reasoning itself; the rest is for Hermes' parser.
THINK = [
    *(case(text, text) for text in PLAIN),
    case("<think>\nWell.\n</think>\n\nHello ", "Hello ", reasoning="Well."),
    case(" <think>a < b </thin </think>\n", "", reasoning="a < b </thin"),
    case("<think>\n\n</think>\n\nHi", "Hi"),
    case("<think>cut off ", "", reasoning="cut off "),
    case("<think>cut off </thi", "", reasoning="cut off </thi"),
    case("<think>a <think> b</think><think>c", "<think>c", reasoning="a <think> b"),
    case("a <think>b</think>", "a <think>b</think>"),
    case("<thinking>", "<thinking>"),
    case(" <thi", " <thi"),
    case("\n</think>\n\nHi", "Hi"),
    case("</thin", "</thin"),
    case(
        '<think>a <tool_call>{"name": "f"}</think> b <tool_call>{"name": "g"}</tool_call>',
        "b",
        ("g", "{}"),
        reasoning='a <tool_call>{"name": "f"}',
    ),
]

# Where the prompt has opened it.
OPENED = [
    case("\nWell.\n</think>\n\nHello ", "Hello ", reasoning="Well."),
    case("<think>Well.</think>Hello", "Hello", reasoning="Well."),
    case("</think>\nHi", "Hi"),
    case("all of it ", "", reasoning="all of it "),
    case("\n ", ""),
    case("<thi", "", reasoning="<thi"),
    case('x</think><tool_call>{"name": "g"}', "", ("g", "{}"), reasoning="x"),
]

_F, _G = f'<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>', '<tool_call>{"name": "g"}</tool_call>'

# Where calls may stand at the end of reasoning that was not closed.
UNCLOSED = [
    case(f"<think>I must look.\n\n{_F}", "", ("f", WEATHER), reasoning="I must look."),
    case(f"<think>\n{_F}\n{_G}\n ", "", ("f", WEATHER), ("g", "{}")),
    case('<think>a <tool_call>{"name": "g"}', "", ("g", "{}"), reasoning="a"),
    case(f"<think>a {_F} b {_G}", "", ("g", "{}"), reasoning=f"a {_F} b"),
    case(f"<think>a <tool_call> hm \n<tool_call>{_G}", "", ("g", "{}"), reasoning="a <tool_call> hm \n<tool_call>"),
    case(f'<think><tool_call>{{"a": "{_G}', "", ("g", "{}"), reasoning='<tool_call>{"a": "'),
    # What is closed later was a draft, and so is what goes on, or is cut off.
    case(f"<think>a {_F}</think>\nb", "b", reasoning=f"a {_F}"),
    case(f"<think>a {_F}\n</think>{_G}", "", ("g", "{}"), reasoning=f"a {_F}"),
    case(f"<think>a \n{_F}{_G} and\n</think>b", "b", reasoning=f"a \n{_F}{_G} and"),
    case('<think>a <tool_call>{"name": "</think>"}', '"}', reasoning='a <tool_call>{"name": "'),
    case(f"<think>a {_F} so ", "", reasoning=f"a {_F} so "),
    case(f"<think>a {_F}</thi", "", reasoning=f"a {_F}</thi"),
    case("<think>a \n<tool_call>\n ", "", reasoning="a \n<tool_call>\n "),
    case(
        '<think>a <tool_call>{"name": "f", "arguments": {"a": "un',
        "",
        reasoning='a <tool_call>{"name": "f", "arguments": {"a": "un',
    ),
    case(f"a {_G}", "a", ("g", "{}")),
]

# The same where the prompt has opened it, and it stays in the content.
RAW = [
    case(_G, "", ("g", "{}")),
    case(f" {_G}", " ", ("g", "{}")),
    case(f"a {_F}", "a", ("f", WEATHER)),
    case(f"a {_F}</think>\nb", f"a {_F}</think>\nb"),
    case(f"<think>{_G}", "<think>", ("g", "{}")),
    *(case(text, text) for text in ("<tool", "<t", "<thi", " <tool_call", "<think>a", "a <tool_call>", "</thi")),
]
