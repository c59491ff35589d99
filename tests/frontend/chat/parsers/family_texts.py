"""What models of each family write, well and badly: texts by the name of the form, and what they are made of."""

import json
from typing import Any

from tests.frontend.chat.parsers.sectioned_texts import SECTION_FRAGMENTS, SECTIONED
from tests.frontend.chat.parsers.texts import NESTED, PLAIN, WEATHER, Case, case

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "warm": {"type": "boolean"},
            "size": {"type": ["number", "null"]},
            "list": {"$ref": "#/$defs/list"},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "unit": {"enum": ["celsius", 3]},
        },
        "$defs": {"list": {"type": "array"}},
    },
    "g": {"type": "object", "properties": {}},
    "nested": {
        "type": "object",
        "properties": {
            "o": {"type": "object", "properties": {"k": {"$ref": "#/$defs/number"}}},
            "s": {"type": "string"},
        },
        "$defs": {"number": {"type": "integer"}},
    },
}


XML = '<parameter name="a">1</parameter>\n<parameter name="b">2</parameter>'


def qwen(*pairs: tuple[str, str], name: str = "f") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


_QWEN = [
    case(qwen(("city", "Paris")), "", ("f", WEATHER)),
    case(qwen(name="g"), "", ("g", "{}")),
    case(
        f"So:\n{qwen(('days', '3'), ('warm', 'True'))}\n{qwen(('size', 'null'))}\n done",
        "So:\ndone",
        ("f", '{"days": 3, "warm": true}'),
        ("f", '{"size": null}'),
    ),
    case(qwen(("list", '[1, {"a": "b"}]'), ("any", "12")), "", ("f", '{"list": [1, {"a": "b"}], "any": 12}')),
    case(qwen(("list", "[1, 'a', None]"), ("any", "x12")), "", ("f", '{"list": [1, "a", null], "any": "x12"}')),
    case(qwen(("days", "many"), ("unit", "3")), "", ("f", '{"days": "many", "unit": 3}')),
    case(qwen(("list", "a, b"), ("unit", "celsius")), "", ("f", '{"list": "a, b", "unit": "celsius"}')),
    # A text stands as it is, and its end is the first tag that ends it.
    case(
        qwen(("city", 'if a < b: "x\\n"\n\n<tool_call>\n</function>')),
        "",
        ("f", '{"city": "if a < b: \\"x\\\\n\\"\\n\\n<tool_call>\\n</function>"}'),
    ),
    case(qwen(("other", "07")), "", ("f", '{"other": "07"}')),
    case(qwen(("a", "1"), name="unknown"), "", ("unknown", '{"a": "1"}')),
    case(qwen(("city", "")), "", ("f", '{"city": ""}')),
    case("<function=f>\n<parameter=city>Paris</parameter>\n</function>", "", ("f", WEATHER)),
    case("Hm. <function=g></function> and", "Hm. and", ("g", "{}")),
    case("<tool_call><function=g></tool_call>", "", ("g", "{}")),
    case("<tool_call><function=f><parameter=city>x</parameter></tool_call>y", "y", ("f", '{"city": "x"}')),
    # RowSlice off: what came of it.
    case("<tool_call>\n<function=f>\n<parameter=city>\nPar", "", ("f", '{"city": "Par')),
    case("<tool_call>\n<function=f>\n<parameter=city>\nPar\n</para", "", ("f", '{"city": "Par\\n</para')),
    case("<tool_call>\n<function=f>\n<parameter=list>\n[1, ", "", ("f", '{"list": [1, ')),
    case("<function=f><parameter=city>x</parameter><parameter=da", "", ("f", '{"city": "x"')),
    # The tag for a value's end is text where its call does not go on behind.
    case("<function=f><parameter=city>x</parameter> oh</function>", "", ("f", '{"city": "x</parameter> oh"}')),
    case(
        qwen(("city", "line\n</parameter>\nmore"), ("days", "3")),
        "",
        ("f", '{"city": "line\\n</parameter>\\nmore", "days": 3}'),
    ),
    case(qwen(("city", "a\n</parameter>\nb"))[:58], "", ("f", '{"city": "a\\n</parameter>\\nb')),
    case(qwen(("city", XML)), "", ("f", f'{{"city": {json.dumps(XML)}}}')),
    case(
        "<tool_call>\n<function=f>\n<parameter=city>\nx\n</parameter>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</function>\n</tool_call>",
        "",
        ("f", '{"city": "x\\n</parameter>", "days": 3}'),
    ),
    # A tag for the end of a value is missing: the next key of the schema ends it, or the end of the call.
    case(
        "<tool_call>\n<function=f>\n<parameter=city>\nDallas\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        ("f", '{"city": "Dallas", "days": 3}'),
    ),
    case(
        "<function=f><parameter=days>3\n<parameter=city>x</parameter></function>", "", ("f", '{"days": 3, "city": "x"}')
    ),
    case(
        "<tool_call>\n<function=f>\n<parameter=city>\n<parameter=days>\n3\n</function>\n</tool_call>ok",
        "ok",
        ("f", '{"city": "", "days": 3}'),
    ),
    case("<tool_call><function=f>\n<parameter=city>\nx</function></tool_call>", "", ("f", '{"city": "x"}')),
    case("<tool_call><function=f>\n<parameter=city>\nx\n</function>\n</tool_", "", ("f", '{"city": "x"}')),
    # A key that the tool does not have, or that was given, is text; so is a tag behind which nothing ends.
    case(qwen(("city", "a\n<parameter=other>\nb")), "", ("f", '{"city": "a\\n<parameter=other>\\nb"}')),
    case(qwen(("city", "a\n<parameter=city>\nb")), "", ("f", '{"city": "a\\n<parameter=city>\\nb"}')),
    case(qwen(("city", "a <parameter=days>3")), "", ("f", '{"city": "a <parameter=days>3"}')),
    case(
        qwen(("city", "a\n<parameter=\n<parameter=da\nb")), "", ("f", '{"city": "a\\n<parameter=\\n<parameter=da\\nb"}')
    ),
    case(qwen(("city", "a\n</function>\n<x")), "", ("f", '{"city": "a\\n</function>\\n<x"}')),
    # Within a line of a value that has lines of its own the tag for its end is text, unless the call goes on there.
    case(
        qwen(("city", "<p></parameter> is\nb </parameter>")),
        "",
        ("f", '{"city": "<p></parameter> is\\nb </parameter>"}'),
    ),
    case(
        "<function=f>\n<parameter=city>\na</parameter>\n<parameter=days>\n3</parameter></function>",
        "",
        ("f", '{"city": "a", "days": 3}'),
    ),
    case("<function=f><parameter=city>\nx</parameter>", "", ("f", '{"city": "x"')),
    # A malformed element is dropped.
    case(
        "<tool_call>\n<function=f>\n<parameter=city>\nx\n</parameter>\n<parameter=\necho\n</parameter>\n</function>\n</tool_call>",
        "",
        ("f", '{"city": "x"}'),
    ),
    case(
        "<tool_call>\n<function=f>\n<parameter=da\n3\n</parameter>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>",
        "",
        ("f", '{"city": "x"}'),
    ),
    case("<tool_call>\n<function=f>\n<parameter=\necho\n</parameter>\n</function>\n</tool_call>", "", ("f", "{}")),
    case("<function=f>\n<parameter=\necho\n</parameter>\n<parameter=days>\n3\n", "", ("f", '{"days": 3\n')),
    *(
        case(
            f"<tool_call>\n<function=f>\n{tag}\nx\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            ("f", '{"days": 3}'),
        )
        for tag in ("<parameter city>", '<parameter name="city">', "<parameter>")
    ),
    case(
        qwen(("city", "x"), ("any", "y"), ("days", "3")).replace("=any", ' name="any"'),
        "",
        ("f", '{"city": "x", "days": 3}'),
    ),
    case("<tool_call>\n<function=f>\n<parameter city>\nx", "", ("f", "{")),
    # A call ends with its section, or before the next one.
    case("<tool_call>\n<function=f>\n<parameter=city>\nx\n</tool_call>", "", ("f", '{"city": "x"}')),
    case(
        f"<tool_call>\n<function=f>\n<parameter=city>\nx\n</tool_call>\n{qwen(name='g')}b",
        "b",
        ("f", '{"city": "x"}'),
        ("g", "{}"),
    ),
    case(
        f"<tool_call>\n<function=f>\n<parameter=city>\nx\n</parameter>\n{qwen(name='g')}",
        "",
        ("f", '{"city": "x"}'),
        ("g", "{}"),
    ),
    case(
        "<function=f><parameter=city>x\n</function>\n<function=g></function>", "", ("f", '{"city": "x"}'), ("g", "{}")
    ),
    case(qwen(("city", "x\n</tool_call>\ny")), "", ("f", '{"city": "x\\n</tool_call>\\ny"}')),
    *(
        case(text, text)
        for text in (
            "<tool_call>",
            "<tool_call>\n<function=",
            "<tool_call>\n<function=f>\n",
            "<tool_call>\n<function=f>\n<param",
            "<tool_call>\n<function=f>\n<parameter=ci",
            "<tool_call>\n<function=f>\n oh",
            "<tool_call>\n<function=>",
            "<tool_call>\n<function=a<b>",
            "<tool_call>\n<function=" + "f" * 300 + ">\n</function>",
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
            "<function",
        )
    ),
]


def glm(*pairs: tuple[str, str], name: str = "f") -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{inner}</tool_call>"


_GLM = [
    case(glm(("city", "Paris")), "", ("f", WEATHER)),
    case(
        f"a {glm(('days', '3'), ('city', ' x '))}\n{glm(name='g')}",
        "a",
        ("f", '{"days": 3, "city": " x "}'),
        ("g", "{}"),
    ),
    case("<tool_call>f<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>", "", ("f", '{"days": 3}')),
    case("<tool_call>g</tool_call>b", "b", ("g", "{}")),
    case("<tool_call>f<arg_key>city</arg_key><arg_value>Par</arg", "", ("f", '{"city": "Par</arg')),
    # The tag for a value's end is text where no more of its call follows. Where it is missing, the call's end ends it.
    case(
        glm(("city", "x </arg_value> y"), ("days", "3")),
        "",
        ("f", '{"city": "x </arg_value> y", "days": 3}'),
    ),
    case("<tool_call>f<arg_key>city</arg_key>\n<arg_value>x\n</tool_call>", "", ("f", '{"city": "x"}')),
    case(
        f"<tool_call>f<arg_key>city</arg_key>\n<arg_value>x\n</tool_call>\n{glm(name='g')}",
        "",
        ("f", '{"city": "x"}'),
        ("g", "{}"),
    ),
    case(
        f"<tool_call>f<arg_key>city</arg_key>\n<arg_value>x</arg_value>{glm(name='g')}b",
        "b",
        ("f", '{"city": "x"}'),
        ("g", "{}"),
    ),
    case(glm(("city", "x\n<arg_key>days</arg_key><arg_value>3")), "", ("f", '{"city": "x", "days": 3}')),
    # A malformed element is dropped.
    *(
        case(glm(("city", "x"), ("days", "3")).replace(tag, broken), "", ("f", '{"days": 3}'))
        for tag, broken in (
            ("<arg_key>city<", "<arg_key city<"),
            ("<arg_value>x", "x"),
            ("city</arg_key>", "city</arg"),
        )
    ),
    case(
        "<tool_call>f<arg_key>city</arg_key><arg_key>city</arg_key><arg_value>x</arg_value></tool_call>",
        "",
        ("f", '{"city": "x"}'),
    ),
    *(case(text, text) for text in ("<tool_call>hello world", "<tool_call>", "<tool_call>f", "<tool_call>f</tool_ca")),
]

_MINIMAX = [
    case(
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        "",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case(
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">x </parameter> y</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        "",
        ("f", '{"city": "x </parameter> y"}'),
        ("g", "{}"),
    ),
    case(
        '<minimax:tool_call><invoke name="f"><parameter name="any" type="string">x</parameter>'
        '<parameter name="days">3</parameter><invoke name="g"></minimax:tool_call>',
        "",
        ("f", '{"days": 3}'),
        ("g", "{}"),
    ),
    case("<minimax:tool_call> no", "<minimax:tool_call> no"),
    case("<minimax:tool_call></minimax:tool_call>", "<minimax:tool_call></minimax:tool_call>"),
]

_SEED = [
    case(
        "<seed:tool_call>\n<function=f>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        "",
        ("f", WEATHER),
    ),
]

_PYTHON_ARGUMENTS = """a=1, b = 'x"\\n\\'é🙂', c=[True, None, -2.5e+3, (1,)], d={'k': {}, "l": []}, e=.5, f_2=1_000"""
_PYTHON_JSON = (
    '{"a": 1, "b": "x\\"\\n\'é🙂", "c": [true, null, -2.5e+3, [1]], "d": {"k": {}, "l": []}, "e": 0.5, "f_2": 1000}'
)
_PYTHON_BROKEN = (
    case("[f(a=1), hello", ", hello", ("f", '{"a": 1}')),
    case("[f(a=1, 2)]", "", ("f", '{"a": 1, 2)]')),
    case("[f(a=1) and", "and", ("f", '{"a": 1}')),
    case("[f(a=oops)]", "", ("f", '{"a": oops)]')),
    case("[f(a=[1, oops])]", "", ("f", '{"a": [1, oops])]')),
    case("[f(a='cut", "", ("f", '{"a": "cut')),
    case("[f(a='cut\\", "", ("f", '{"a": "cut')),
    case("[f(a=12", "", ("f", '{"a": 12')),
    *(
        case(text, text)
        for text in (
            "[",
            "[]",
            "[1, 2]",
            "[f]",
            "[f(1)]",
            "[f(a)]",
            "[f(a",
            "f(a=1)",
            "[see (this)]",
            "[f (a=1)]",
            "[h()]",
        )
    ),
)

_PYTHONIC = [
    case('[f(city="Paris")]', "", ("f", WEATHER)),
    case(" [f(city='Paris'),\n g()] ", "", ("f", WEATHER), ("g", "{}")),
    case(f"[f({_PYTHON_ARGUMENTS})]", "", ("f", _PYTHON_JSON)),
    case(f"[f(a={NESTED})]", "", ("f", f'{{"a": {NESTED}}}'.replace("\\u00e9", "é"))),
    case("[f(a='\\ud83d\\ude00\\x41\\ud83d', b='\\N')]", "", ("f", '{"a": "😀A\ufffd", "b": "\\\\N"}')),
    case("[f(a=1,)] then [g()]", "then [g()]", ("f", '{"a": 1}')),
    case("Sure: [g()]", "Sure: [g()]"),
    *_PYTHON_BROKEN,
]

_LLAMA4 = [
    case('<|python_start|>[f(city="Paris")]<|python_end|>', "", ("f", WEATHER)),
    case('[f(city="Paris"), g()]', "", ("f", WEATHER), ("g", "{}")),
    case("Hm.\n<|python_start|>[g()]", "Hm.", ("g", "{}")),
    *_PYTHON_BROKEN,
]

_OLMO = [
    case(
        "<function_calls>\nf(city='Paris')\ng()\n</function_calls>\nDone",
        "Done",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case("<function_calls>f(a=true, b=null)</function_calls>", "", ("f", '{"a": true, "b": null}')),
    case("<function_calls>none</function_calls>", "<function_calls>none</function_calls>"),
]


def _gemma(opening: str, closing: str, quote: str) -> list[Case]:
    def text(value: str) -> str:
        return f"{quote}{value}{quote}"

    return [
        case(f"{opening}call:f{{city:{text('Paris')}}}{closing}", "", ("f", WEATHER)),
        case(
            f"Well.\n{opening}call:f{{days:3,warm:true,x:{text('a,b}')},n:{{k:[1,{text('<z')}],m:null}}}}{closing}"
            f"{opening}call:g{{}}{closing}",
            "Well.",
            ("f", '{"days": 3, "warm": true, "x": "a,b}", "n": {"k": [1, "<z"], "m": null}}'),
            ("g", "{}"),
        ),
        case(
            f"{opening}call:f{{unit:degrees celsius,{text('a:b')}:1}}",
            "",
            ("f", '{"unit": "degrees celsius", "a:b": 1}'),
        ),
        case(f'{opening}call:f{{a:"x, y",b:{text("<|<e")}}}', "", ("f", '{"a": "x, y", "b": "<|<e"}')),
        case(f"{opening}call:f{{city:{quote}Par", "", ("f", '{"city": "Par')),
        case(
            f"{opening}call:f{{city:{quote}Par{quote[:3]}",
            "",
            ("f", f'{{"city": "Par{quote[:3]}'.replace('|"', '|\\"')),
        ),
        case(f"{opening}:f{{city:{text('Paris')}}}{closing}", "", ("f", WEATHER)),
        case(f"{opening}call_f{{}}{closing}{opening}f{{a:1}}", "", ("call_f", "{}"), ("f", '{"a": 1}')),
        case(f"{opening}call:f{{a:1,,}}{closing} b", "b", ("f", '{"a": 1,,}')),
        *(
            case(text, text)
            for text in (
                opening,
                f"{opening}call:",
                f"{opening}call:f",
                f"{opening}f g{{}}",
                f"{opening}call:{{}}",
                f"{opening}:{{}}",
            )
        ),
    ]


_GRANITE = [
    case(f'<|tool_call|>[{{"name": "f", "arguments": {NESTED}}}, {{"name": "g"}}]', "", ("f", NESTED), ("g", "{}")),
    case(f'<tool_call>[{{"name": "f", "arguments": {WEATHER}}}]', "", ("f", WEATHER)),
    case("<|tool_call|>[]", "<|tool_call|>[]"),
    case('<|tool_call|>[{"name": "f", "arguments": "{\\"a\\": 1}"},]', "", ("f", '{"a": 1}')),
    case('<|tool_call|>[{"name": "f", "arguments": {"a": x}}] b', "", ("f", '{"a": x}}] b')),
]

_COHERE = [
    case(
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "f", "parameters": {WEATHER}}}\n]<|END_ACTION|>',
        "",
        ("f", WEATHER),
    ),
    case('<|START_ACTION|>[{"tool_name": "f", "parameters": "{\\"a\\": 1}"}]<|END_ACTION|>', "", ("f", '{"a": 1}')),
    case('<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": x}}]<|END_ACTION|>b', "b", ("f", '{"a": x}}]')),
    case('<|START_ACTION|>[{"name": "f"}]', '<|START_ACTION|>[{"name": "f"}]'),
]

_PHI = [
    case(f'functools[{{"name": "f", "arguments": {WEATHER}}}]', "", ("f", WEATHER)),
    case('functools[{"name": "f", "arguments": "{\\"a\\": \\"\\n\\"}"}]', "", ("f", '{"a": "\\n"}')),
    case("functools are fun", "functools are fun"),
]

_ANALYSIS = "<|channel|>analysis<|message|>I think.<|end|>"
_CALL = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{WEATHER}"

_HARMONY = [
    case(f"{_ANALYSIS}<|start|>assistant<|channel|>final<|message|>Hello < you", "Hello < you", reasoning="I think."),
    case(f"{_ANALYSIS}<|start|>assistant{_CALL}<|call|>", "", ("f", WEATHER), reasoning="I think."),
    case(f"{_ANALYSIS}<|start|>assistant{_CALL}", "", ("f", WEATHER), reasoning="I think."),
    case(
        f"{_ANALYSIS}<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant{_ANALYSIS}"
        f"<|start|>assistant to=functions.g<|channel|>commentary json<|message|><|call|>",
        "Let me see.",
        ("g", "{}"),
        reasoning="I think.\nI think.",
    ),
    case(f" to=functions.f<|channel|>commentary<|message|>{WEATHER}<|call|>", "", ("f", WEATHER)),
    case("<|channel|>commentary to=python<|message|>print(1)<|call|>", "", ("python", "print(1)")),
    case('<|channel|>commentary to=python<|message|>["\\d",]<|call|>', "", ("python", '["\\d",]')),
    case('<|channel|>commentary to=functions.f<|message|>{"a": "\\d\n",}<|call|>', "", ("f", '{"a": "\\\\d\\n"}')),
    case('<|channel|>commentary to=functions.f<|message|>{"a": x, <|call|>', "", ("f", '{"a": x, ')),
    case('<|channel|>commentary to=functions.f<|message|>{"a": 1, ', "", ("f", '{"a": 1, ')),
    case(f"{_CALL}<|call|><|start|>assistant{_CALL}<|call|>", "", ("f", WEATHER), ("f", WEATHER)),
    case("<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a\nb"),
    # A call that is cut off before its arguments is none; its end makes it one.
    case("<|channel|>commentary to=functions.f<|message|>"),
    case("<|channel|>commentary to=functions.f<|message|> \n"),
    case("<|channel|>commentary to=functions.f<|message|><|end|>"),
    case("<|channel|>commentary to=python<|message|>"),
    case("<|channel|>commentary to=functions.f<|message|> <|call|>", "", ("f", "{}")),
    case("<|channel|>commentary to=functions.f<|message|> {", "", ("f", "{")),
    # Arguments as a string are the object in it; other ones stay as they are.
    case(
        '<|channel|>commentary to=functions.f<|message|>"{\\"city\\": \\"Paris\\"}"<|call|>',
        "",
        ("f", WEATHER),
    ),
    case('<|channel|>commentary to=functions.f<|message|>"Paris"<|call|>', "", ("f", '"Paris"')),
    case("<|channel|>commentary to=functions.f<|message|>Paris<|call|>", "", ("f", "Paris")),
    case('<|channel|>commentary to=functions.f<|message|>"<|call|>', "", ("f", '"')),
    case('<|channel|>commentary to=functions.f<|message|>"{"a": 1}"<|call|>', "", ("f", '{a": 1}"')),
    # Ends that are missing, and headers that are none.
    case("<|channel|>analysis<|message|>cut", reasoning="cut"),
    case("<|channel|>analysis<|message|>cut<|en", reasoning="cut<|en"),
    case("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "b", reasoning="a"),
    case('<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": ', "", ("f", '{"a": ')),
    case("<|channel|>analysis<|mess", ""),
    case("<|channel|>other<|message|>x", "x"),
    case("Hello, world<|end|>", "Hello, world"),
    case("<|other|>x", "<|other|>x"),
    case("<|channel|>" + "x" * 600, "<|channel|>" + "x" * 600),
    case("to", "to"),
    case("tomorrow <|x", "tomorrow <|x"),
]

FAMILIES: dict[str, list[Case]] = {
    "qwen3_coder": [*(case(text, text) for text in PLAIN), *_QWEN],
    "glm45": [*(case(text, text) for text in PLAIN), *_GLM],
    "minimax_m2": _MINIMAX,
    "seed_oss": _SEED,
    "pythonic": [*(case(text, text) for text in PLAIN), *_PYTHONIC],
    "llama4_pythonic": [*(case(text, text) for text in PLAIN), *_LLAMA4],
    "olmo3": _OLMO,
    "gemma4": [*(case(text, text) for text in PLAIN), *_gemma("<|tool_call>", "<tool_call|>", '<|"|>')],
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "granite": [*(case(text, text) for text in PLAIN), *_GRANITE],
    "cohere_command3": _COHERE,
    "phi4_mini_json": [*(case(text, text) for text in PLAIN), *_PHI],
    "openai": _HARMONY,
    **SECTIONED,
}

# Parts of these texts, of which others are made that look like calls.
FRAGMENTS = [
    *SECTION_FRAGMENTS,
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<parameter=list>",
        "<parameter=city>",
        "\n<parameter=days>",
        "\n<parameter=",
        "<parameter city>",
        "</parameter>",
        "\n</parameter>",
        "</function>",
    ),
    *(
        "f\n<arg_key>",
        "</arg_key>",
        "<arg_key ",
        "<arg_value>",
        "</arg_value>",
        "<minimax:tool_call>",
        '<invoke name="f">',
        "</invoke>",
    ),
    *(
        "[f(",
        "a=",
        "'",
        "g()",
        ")]",
        "<|python_start|>",
        "<function_calls>",
        "</function_calls>",
        "True",
        "0.5",
        "\\u00e9",
    ),
    *("<|tool_call>", "call:f{", "k:", '<|"|>', "<tool_call|>", "<escape>", "<|tool_call|>[", "functools[", "\\ud83d"),
    *(
        "<|channel|>",
        "analysis",
        "final",
        " to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<|call|>",
    ),
]
