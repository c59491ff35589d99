"""What models write, well and badly, in the forms whose calls stand in a section or behind a header."""

import json

from tests.frontend.chat.parsers.texts import NESTED, PLAIN, WEATHER, Case, case

_BARS = "\uff5c"  # DeepSeek's


def _deepseek(text: str) -> str:
    """A text with DeepSeek's tokens, written as `<|calls begin|>`."""
    return text.replace("<|", f"<{_BARS}tool ").replace("|>", f"{_BARS}>").replace(" ", "\u2581")


def _headers(
    begin: str, separator: str, after: str, end: str, opening: str, closing: str, prefix: str, suffix: str
) -> list[Case]:
    """Of a form whose headers are a name with a prefix and a suffix."""

    def call(name: str, arguments: str) -> str:
        return f"{begin}{prefix}{name}{suffix}{separator}{arguments}{after}{end}"

    return [
        case(f"{opening}{call('f', WEATHER)}{closing}", "", ("f", WEATHER)),
        case(
            f"So: {opening}{call('f', NESTED)}\n{call('g-2.x', '{}')}{closing}\nb",
            "So: b",
            ("f", NESTED),
            ("g-2.x", "{}"),
        ),
        case(f"a\n{call('f', '{}')}", "a", ("f", "{}")),
        case(f"{opening}{call('f', WEATHER)}", "", ("f", WEATHER)),
        case(f"{opening}{call('f', '{}')}{closing}{opening}{call('g', '{}')}{closing}", "", ("f", "{}"), ("g", "{}")),
        case(f"{opening}{begin}{prefix}f{suffix}{separator}{WEATHER}", "", ("f", WEATHER)),
        case(f'{opening}{begin}{prefix}f{suffix}{separator}{{"a": "un', "", ("f", '{"a": "un')),
        case(f"{opening}{begin}{prefix}f{suffix}{separator}{WEATHER} and", "and", ("f", WEATHER)),
        # Arguments as a string are read as the object in it.
        case(f"{opening}{call('f', json.dumps(NESTED))}{closing}", "", ("f", NESTED)),
        case(f'{opening}{begin}{prefix}f{suffix}{separator}"{{\\"a\\": 1,', "", ("f", '{"a": 1,')),
        case(f'{opening}{begin}{prefix}f{suffix}{separator}"{{"a": 1}}"{after}{end}b', "b", ("f", '{a": 1}"')),
        *(
            case(text, text)
            for text in (
                f"{opening}{begin}",
                f"{opening}{begin}{prefix}f",
                f"{opening}{begin}{prefix}f{suffix}{separator}",
                f"{opening}{begin}{prefix}f{suffix}{separator}[1]",
                f'{opening}{begin}{prefix}f{suffix}{separator}"Paris"',
                f'{opening}{begin}{prefix}f{suffix}{separator}" "',
                f"{opening}{begin}{prefix}f g{suffix}{separator}{{}}",
                f"{begin} hm",
                f"{begin}{'f' * 300}{separator}{{}}",
            )
        ),
    ]


_KIMI = [
    *_headers(
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "functions.",
        ":0",
    ),
    case("<|tool_call_begin|>g<|tool_call_argument_begin|>{}<|tool_call_end|>", "", ("g", "{}")),
]

_DEEPSEEK_SECTION = (_deepseek("<|calls begin|>"), _deepseek("<|calls end|>"))
_DEEPSEEK_CALL = (_deepseek("<|call begin|>"), _deepseek("<|call end|>"), _deepseek("<|sep|>"))


_IS_TEXT, _IS_JSON = ' string="true"', ' string="false"'


def _dsml(section: str) -> list[Case]:
    mark = f"{_BARS}DSML{_BARS}"
    opening, closing = f"<{mark}{section}>", f"</{mark}{section}>"

    def call(name: str, *parameters: tuple[str, str, str]) -> str:
        inner = "".join(
            f'<{mark}parameter name="{key}"{kind}>{value}</{mark}parameter>\n' for key, kind, value in parameters
        )
        return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>\n'

    return [
        case(f"{opening}\n{call('f', ('city', _IS_TEXT, 'Paris'))}{closing}", "", ("f", WEATHER)),
        case(
            f"So:\n\n{opening}\n{call('f', ('days', _IS_JSON, '3'), ('list', _IS_JSON, '[1, true]'))}{call('g')}"
            f"{closing}",
            "So:",
            ("f", '{"days": 3, "list": [1, true]}'),
            ("g", "{}"),
        ),
        # The schema wins over what the tag says; of other keys the tag tells.
        case(
            f"{opening}\n{call('f', ('city', _IS_JSON, '07'), ('days', _IS_TEXT, '3'))}{closing}"
            f"{opening}\n{call('f', ('x', _IS_JSON, '[1]'), ('y', _IS_TEXT, '1'))}{closing}",
            "",
            ("f", '{"city": "07", "days": 3}'),
            ("f", '{"x": [1], "y": "1"}'),
        ),
        case(f"{opening}\n{call('f', ('days', '', '3'), ('z', '', '4'))}{closing}", "", ("f", '{"days": 3, "z": "4"}')),
        case(
            f'{opening}<{mark}invoke name="f"><{mark}parameter name="city" string="true">Par',
            "",
            ("f", '{"city": "Par'),
        ),
        case(f"{opening} hm", f"{opening} hm"),
    ]


def hunyuan(*pairs: tuple[str, str], name: str = "f") -> str:
    def tag(name: str) -> str:
        return f"<{name}:opensource>"

    inner = "".join(
        f"{tag('arg_key')}{key}{tag('/arg_key')}\n{tag('arg_value')}{value}{tag('/arg_value')}\n"
        for key, value in pairs
    )
    call = f"{tag('tool_call')}{name}{tag('tool_sep')}\n{inner}{tag('/tool_call')}\n"
    return f"{tag('tool_calls')}\n{call}{tag('/tool_calls')}"


_HUNYUAN = [
    case(hunyuan(("city", "Paris")), "", ("f", WEATHER)),
    case(
        hunyuan(("days", "3")).replace("</tool_calls:opensource>", "")
        + hunyuan(name="g").replace("<tool_calls:opensource>\n", ""),
        "",
        ("f", '{"days": 3}'),
        ("g", "{}"),
    ),
    case("<tool_calls:opensource> hm", "<tool_calls:opensource> hm"),
]

_TOKEN = "]<]minimax[>["


def _m3(text: str) -> str:
    """A text with MiniMax M3's token before each tag."""
    return text.replace("<", f"{_TOKEN}<")


_MINIMAX_M3 = [
    case(_m3('<tool_call>\n<invoke name="f"><city>Paris</city></invoke>\n</tool_call>'), "", ("f", WEATHER)),
    case(
        _m3(
            '<tool_call>\n<invoke name="f"><days>3</days>'
            "<list><item>1</item><item><a>x</a><b>y</b></item></list></invoke>\n"
            '<invoke name="g"></invoke>\n</tool_call>'
        )
        + "b",
        "b",
        ("f", '{"days": 3, "list": ["1", {"a": "x", "b": "y"}]}'),
        ("g", "{}"),
    ),
    case(
        _m3('<tool_call><invoke name="nested"><o><k>1</k></o><s>a</s></invoke></tool_call>'),
        "",
        ("nested", '{"o": {"k": 1}, "s": "a"}'),
    ),
    case(
        _m3('<tool_call><invoke name="f"><list></list><size></size></invoke>'), "", ("f", '{"list": [], "size": null}')
    ),
    # A text may hold what looks like tags.
    case(
        _m3('<tool_call><invoke name="f"><city>')
        + f' a < b {_TOKEN} <p>{_TOKEN}<x>{_TOKEN}</y>\n"'
        + _m3("</city></invoke></tool_call>"),
        "",
        ("f", f'{{"city": " a < b {_TOKEN} <p>{_TOKEN}<x>{_TOKEN}</y>\\n\\""}}'),
    ),
    # What is missing, cut off or broken.
    case(_m3('<tool_call><invoke name="f"><city>Paris</invoke></tool_call>'), "", ("f", WEATHER)),
    case(_m3('<tool_call><invoke name="f"><list><item>x</tool_call>b'), "b", ("f", '{"list": ["x"]}')),
    case(_m3('<tool_call><invoke name="f"><city>Par</ci'), "", ("f", f'{{"city": "Par{_TOKEN}</ci')),
    case(_m3('<tool_call><invoke name="f"><city>Par') + _TOKEN[:5], "", ("f", f'{{"city": "Par{_TOKEN[:5]}')),
    case(_m3('<tool_call><invoke name="f"><city>Paris</city> oh'), "oh", ("f", '{"city": "Paris"}')),
    *(
        case(text, text)
        for text in map(
            _m3,
            (
                "<tool_call>",
                "<tool_call> hm",
                "<tool_call></tool_call>",
                '<tool_call><invoke name="f">',
                '<tool_call><invoke name="f"> hm',
                '<tool_call><invoke name="">',
                "<tool_call><invoke" + "e" * 300,
            ),
        )
    ),
]

_APERTUS = [
    case(f'<|tools_prefix|>[{{"f": {WEATHER}}}]<|tools_suffix|>', "", ("f", WEATHER)),
    case(
        f'So: <|tools_prefix|>[{{"f": {NESTED}}}, {{ "g" : {{}} }} ]<|tools_suffix|> b',
        "So: b",
        ("f", NESTED),
        ("g", "{}"),
    ),
    case('<|tools_prefix|>[{"f": {"a": "un', "", ("f", '{"a": "un')),
    case('<|tools_prefix|>[{"f": "{\\"a\\": 1}"}, {"g": null}]<|tools_suffix|>', "", ("f", '{"a": 1}'), ("g", "{}")),
    case('<|tools_prefix|>[{"f": {}]<|tools_suffix|>b', "b", ("f", "{}")),
    case('<|tools_prefix|>[{"f": {}}; x', "; x", ("f", "{}")),
    case('<|tools_prefix|>[{"f": {}, "g": {}}]', ', "g": {}}]', ("f", "{}")),
    *(
        case(f"<|tools_prefix|>{text}", f"<|tools_prefix|>{text}")
        for text in ("", "[]", "[1]", "[{", '[{"f"', '[{"f": 1}]', '[{"": {}}]', "[{f: {}}]", '[{"\\ud800": {}}]')
    ),
]

_NEMOTRON = [
    case(
        f'<TOOLCALL>[{{"name": "f", "arguments": {WEATHER}}}, {{"name": "g"}}]</TOOLCALL>',
        "",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case("<TOOLCALL>[]</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>"),
]
_APRIEL = [
    case(f'a\n<tool_calls>[{{"name": "f", "arguments": {WEATHER}, "id": "1"}}]</tool_calls>', "a", ("f", WEATHER)),
    case("<tool_calls>\n- name: f", "<tool_calls>\n- name: f"),
]
_MINIMAX_M1 = [
    case(
        f'<tool_calls>\n{{"name": "f", "arguments": {WEATHER}}}\n{{"name": "g", "arguments": {{}}}}\n</tool_calls>b',
        "b",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case('<tool_calls>{"name": "f"} x', "x", ("f", "{}")),
    case('<tool_calls>{"name": "f"}{"name": "g", "arguments": {"a', "", ("f", "{}"), ("g", '{"a')),
    case("<tool_calls>", "<tool_calls>"),
    case("<tool_calls>\n</tool_calls>", "<tool_calls>\n</tool_calls>"),
]
_LFM = [
    case('<|tool_call_start|>[f(city="Paris")]<|tool_call_end|>', "", ("f", WEATHER)),
    case("<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>So", "So", ("f", '{"a": 1}'), ("g", "{}")),
    case(
        f'<|tool_call_start|>[ {{"name": "f", "arguments": {WEATHER}}}, {{"name": "g"}}]<|tool_call_end|>',
        "",
        ("f", WEATHER),
        ("g", "{}"),
    ),
    case('<|tool_call_start|>{"name": "g"}<|tool_call_end|>', "", ("g", "{}")),
    *(
        case(f"<|tool_call_start|>{text}", f"<|tool_call_start|>{text}")
        for text in ("", " [", "[]", "[ 1", "f()", '{"a": 1}', '[{"a"', "[f(1)]")
    ),
]
_GIGACHAT = [
    case(f'function call<|role_sep|>\n{{"name": "f", "arguments": {WEATHER}}}', "", ("f", WEATHER)),
    case(
        f'So:<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "f", "arguments": {WEATHER}}}<|message_sep|>\n\n',
        "So:",
        ("f", WEATHER),
    ),
    case("A function call is <|message_sep|>\n", "A function call is <|message_sep|>\n"),
]

SECTIONED: dict[str, list[Case]] = {
    "kimi_k2": [*(case(text, text) for text in PLAIN), *_KIMI],
    "deepseek_v31": _headers(_DEEPSEEK_CALL[0], _DEEPSEEK_CALL[2], "", _DEEPSEEK_CALL[1], *_DEEPSEEK_SECTION, "", ""),
    "deepseek_v3": _headers(
        _DEEPSEEK_CALL[0],
        "\n```json\n",
        "\n```",
        _DEEPSEEK_CALL[1],
        *_DEEPSEEK_SECTION,
        f"function{_DEEPSEEK_CALL[2]}",
        "",
    ),
    "functionary_v3_1": _headers("<function=", ">", "", "</function>", "", "", "", ""),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "hy_v3": _HUNYUAN,
    "minimax_m3": [*(case(text, text) for text in PLAIN), *_MINIMAX_M3],
    "apertus": [*(case(text, text) for text in PLAIN), *_APERTUS],
    "nemotron_json": _NEMOTRON,
    "apriel": _APRIEL,
    "minimax": _MINIMAX_M1,
    "lfm2": [*(case(text, text) for text in PLAIN), *_LFM],
    "gigachat3": _GIGACHAT,
}

# Parts of these texts, of which others are made that look like calls.
SECTION_FRAGMENTS = [
    *("<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>", "{}", "<|tool_call_end|>"),
    *(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        *_DEEPSEEK_SECTION,
        *_DEEPSEEK_CALL,
        "```json",
        "```",
    ),
    *(
        _m3("<tool_call>"),
        _m3('<invoke name="f">'),
        _m3("<list>"),
        _m3("<city>"),
        _m3("</city>"),
        _m3("</invoke>"),
        _TOKEN,
    ),
    *("<|tools_prefix|>", '[{"f": {', "}}]", "<|tools_suffix|>", "<tool_calls>", "</tool_calls>", "<TOOLCALL>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "function call<|role_sep|>", "<|message_sep|>"),
    *("<tool_calls:opensource>", "<tool_call:opensource>", "<tool_sep:opensource>", "</tool_call:opensource>"),
]
