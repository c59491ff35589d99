"""The forms of tool calls, by vLLM's names of their parsers: one table. A form makes parsers, and tells a template."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from pyllm.frontend.chat.parsers.chosen_calls import ChosenCalls
from pyllm.frontend.chat.parsers.harmony import HARMONY_CHANNEL, HarmonyParser
from pyllm.frontend.chat.parsers.header_calls import (
    DEEPSEEK_OPENING,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTIONARY,
    KIMI,
    HeaderCalls,
    HeaderTags,
)
from pyllm.frontend.chat.parsers.minimax_m3_calls import MINIMAX_TOKEN, MinimaxM3Calls
from pyllm.frontend.chat.parsers.parsed_pieces import Parser
from pyllm.frontend.chat.parsers.python_calls import PythonCalls
from pyllm.frontend.chat.parsers.tagged_calls import TaggedCall
from pyllm.frontend.chat.parsers.tool_call_finder import Bare, Body, MarkedCalls
from pyllm.frontend.chat.parsers.tool_call_formats import CallList, Closed, gemma_call, mistral_calls
from pyllm.frontend.chat.parsers.tool_call_reader import CallReader, CallShape
from pyllm.frontend.chat.parsers.values.argument_tags import DEEPSEEK, DSML, GLM, HUNYUAN, MINIMAX, QWEN, Tags
from pyllm.frontend.chat.parsers.values.argument_types import Schemas

# How a grammar writes calls; with `none` it cannot.
Style = Literal["none", "closed", "mistral", "bare", "list", "tagged", "harmony"]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How models of a family write tool calls.

    `make_parser` makes a machine for one sample's text; it is given the schemas of the tools by name. A template that
    has all of one of the `signs` is of such a model. Calls begin with one of the `markers`, if it has any; complete
    ones at the end of reasoning that was not closed are calls. The rest is for grammars: the marker before calls, that
    after them, the keys of a call's object, and the tags of its arguments.
    """

    make_parser: Callable[[Schemas], Parser]
    signs: tuple[tuple[str, ...], ...] = ()
    style: Style = "none"
    marker: str = ""
    closing: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    tags: Tags | None = None
    markers: tuple[str, ...] = ()


HERMES_OPENING, HERMES_CLOSING = "<tool_call>", "</tool_call>"
MISTRAL_ARGUMENTS = "[ARGS]"
LLAMA_OPENER = "{"

_PYTHON_TAG = "<|python_tag|>"
_LFM_END = "<|tool_call_end|>"
_COHERE_SHAPE = CallShape("tool_name", ("parameters",))


def llama_parser(schemas: Schemas) -> Parser:
    """Llama 3's calls: behind their marker, or bare. Bare ones are of these tools, and have arguments."""
    shape = CallShape(names=schemas or None, needs_arguments=True)
    return MarkedCalls(
        [_PYTHON_TAG],
        lambda index: CallList(index, "row"),
        Bare(LLAMA_OPENER, lambda index: CallList(index, "row", shape)),
    )


def leading_llama_parser(names: Collection[str]) -> Parser:
    """The same where a grammar writes the text: bare calls are at the beginning, and their name comes first."""
    shape = CallShape(names=names, needs_arguments=True, in_order=True)
    return MarkedCalls([_PYTHON_TAG], lambda index: CallList(index, "row", shape), Bare(LLAMA_OPENER))


def _body_form(
    markers: tuple[str, ...],
    make_body: Callable[[int, Schemas], Body],
    *signs: tuple[str, ...],
    style: Style = "none",
    closing: str = "",
    keys: tuple[str, str] = ("name", "arguments"),
    tags: Tags | None = None,
    kept: tuple[str, ...] = (),
    opener: str = "",
) -> ToolForm:
    def make_parser(schemas: Schemas) -> Parser:
        return MarkedCalls(markers, lambda index: make_body(index, schemas), Bare(opener), kept, closing)

    return ToolForm(make_parser, signs, style, markers[0] if markers else "", closing, keys, tags, (*markers, *kept))


def _list_form(markers: tuple[str, ...], *signs: tuple[str, ...], closing: str = "") -> ToolForm:
    def make_body(index: int, schemas: Schemas) -> Body:
        del schemas
        calls = CallList(index, "brackets")
        return Closed(calls, closing) if closing else calls

    return _body_form(markers, make_body, *signs, style="list", closing=closing)


def _header_form(marker: str, tags: HeaderTags, *signs: tuple[str, ...]) -> ToolForm:
    """A call may come without the marker of its section, or has none."""
    markers = (marker,) if marker else ()
    return _body_form(
        markers, lambda index, schemas: HeaderCalls(index, tags), *signs, closing=tags.end, kept=(tags.begin,)
    )


def _dsml_form(section: str, *signs: tuple[str, ...]) -> ToolForm:
    return _tagged_form(f"<{DSML}{section}>", f"</{DSML}{section}>", DEEPSEEK, *signs)


def _lfm_calls(index: int, schemas: Schemas) -> Body:
    """In Python, or in JSON where the model was asked for it."""
    del schemas

    def choose(beginning: str) -> Body | None:
        if beginning == "[":
            return None
        is_json = beginning.endswith("{")
        calls: Body = CallList(index, "either") if is_json else PythonCalls(index, "brackets")
        return Closed(calls, _LFM_END)

    return ChosenCalls(choose)


def _tagged_form(marker: str, closing: str, tags: Tags, *signs: tuple[str, ...]) -> ToolForm:
    kept = (tags.before_name,) if tags is QWEN else ()
    several = tags in (MINIMAX, HUNYUAN, DEEPSEEK)
    return _body_form(
        (marker,),
        lambda index, schemas: TaggedCall(index, tags, closing, schemas, several),
        *signs,
        style="none" if tags.text_key else "tagged",
        closing=closing,
        tags=tags,
        kept=kept,
    )


def _gemma_form(marker: str, closing: str, delimiter: str) -> ToolForm:
    return _body_form(
        (marker,), lambda index, schemas: Closed(gemma_call(index, delimiter), closing), (marker,), closing=closing
    )


_HERMES = _body_form(
    (HERMES_OPENING,),
    lambda index, schemas: Closed(CallList(index, "either"), HERMES_CLOSING),
    (HERMES_OPENING,),
    style="closed",
    closing=HERMES_CLOSING,
)
_QWEN = _tagged_form(HERMES_OPENING, HERMES_CLOSING, QWEN, ("<function=", "<parameter="))
_GLM = _tagged_form(HERMES_OPENING, HERMES_CLOSING, GLM, ("<arg_key>",))
_LLAMA = ToolForm(
    llama_parser,
    ((_PYTHON_TAG,), ('"parameters": dictionary of argument name and its value',)),
    "bare",
    _PYTHON_TAG,
    keys=("name", "parameters"),
    markers=(_PYTHON_TAG,),
)
_COHERE = _body_form(
    ("<|START_ACTION|>",),
    lambda index, schemas: Closed(CallList(index, "brackets", _COHERE_SHAPE), "<|END_ACTION|>"),
    ("<|START_ACTION|>",),
    style="list",
    closing="<|END_ACTION|>",
    keys=("tool_name", "parameters"),
)

# In this order: a template that has the signs of several is of the first.
TOOL_FORMS: dict[str, ToolForm] = {
    "openai": ToolForm(lambda schemas: HarmonyParser(), ((HARMONY_CHANNEL, "commentary"),), "harmony"),
    "seed_oss": _tagged_form("<seed:tool_call>", "</seed:tool_call>", QWEN, ("<seed:tool_call>",)),
    "minimax_m2": _tagged_form("<minimax:tool_call>", "</minimax:tool_call>", MINIMAX, ("<minimax:tool_call>",)),
    "minimax_m3": _body_form((f"{MINIMAX_TOKEN}<tool_call>",), MinimaxM3Calls, (MINIMAX_TOKEN,)),
    "hy_v3": _tagged_form(
        "<tool_calls:opensource>", "</tool_calls:opensource>", HUNYUAN, ("<tool_calls{}>", "<tool_sep{}>")
    ),
    "deepseek_v32": _dsml_form("function_calls", (DSML, "function_calls>")),
    "deepseek_v4": _dsml_form("tool_calls", (DSML, "tool_calls>")),
    "deepseek_v3": _header_form(DEEPSEEK_OPENING, DEEPSEEK_V3, (DEEPSEEK_OPENING, "```json")),
    "deepseek_v31": _header_form(DEEPSEEK_OPENING, DEEPSEEK_V31, (DEEPSEEK_OPENING,)),
    "kimi_k2": _header_form(
        "<|tool_calls_section_begin|>", KIMI, ("<|tool_calls_section_begin|>",), ("tool_calls_section_begin|>",)
    ),
    "functionary_v3_1": _header_form("", FUNCTIONARY, ('<function=example_function_name>{"',)),
    "apertus": _body_form(
        ("<|tools_prefix|>",),
        lambda index, schemas: Closed(CallList(index, "brackets", CallShape(is_keyed=True)), "<|tools_suffix|>"),
        ("<|tools_prefix|>",),
        closing="<|tools_suffix|>",
    ),
    "nemotron_json": _list_form(("<TOOLCALL>",), ("<TOOLCALL>",), closing="</TOOLCALL>"),
    "apriel": _list_form(("<tool_calls>",), ("<tool_calls>[",), closing="</tool_calls>"),
    "minimax": _body_form(
        ("<tool_calls>",),
        lambda index, schemas: Closed(CallList(index, "row"), "</tool_calls>"),
        ("<tool_calls>", "<tool-name>"),
        closing="</tool_calls>",
    ),
    "lfm2": _body_form(
        ("<|tool_call_start|>",),
        _lfm_calls,
        ("<|tool_call_start|>",),
        ("<|tool_list_start|>",),
        ("List of tools: [",),
        closing=_LFM_END,
    ),
    "gigachat3": _body_form(
        ("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        lambda index, schemas: Closed(CallReader(index), "<|message_sep|>"),
        ("function call", "<|role_sep|>"),
        closing="<|message_sep|>",
    ),
    "qwen3_coder": _QWEN,
    "glm45": _GLM,
    "gemma4": _gemma_form("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": _gemma_form("<start_function_call>", "<end_function_call>", "<escape>"),
    "granite": _list_form(("<|tool_call|>", HERMES_OPENING), ("<|tool_call|>",)),
    "cohere_command3": _COHERE,
    "phi4_mini_json": _list_form(("functools",), ("functools[",)),
    "olmo3": _body_form(
        ("<function_calls>",),
        lambda index, schemas: Closed(PythonCalls(index, "lines"), "</function_calls>"),
        ("<function_calls>",),
        closing="</function_calls>",
    ),
    "hermes": _HERMES,
    "mistral": _body_form(
        ("[TOOL_CALLS]",), lambda index, schemas: mistral_calls(index), ("[TOOL_CALLS]",), style="mistral"
    ),
    "llama4_pythonic": _body_form(
        ("<|python_start|>",),
        lambda index, schemas: Closed(PythonCalls(index, "brackets", schemas or None), "<|python_end|>"),
        ("<|python_start|>",),
        ("<|header_start|>", "[func_name1("),
        closing="<|python_end|>",
        opener="[",
    ),
    "pythonic": _body_form(
        (), lambda index, schemas: PythonCalls(index, "brackets", schemas or None), ("[func_name1(",), opener="["
    ),
    "llama3_json": _LLAMA,
    # Other names of the same.
    "qwen3_xml": _QWEN,
    "mimo": _QWEN,
    "step3p5": _QWEN,
    "glm47": _GLM,
    "ling3": _GLM,
    "granite4": _HERMES,
    "llama4_json": _LLAMA,
    "cohere_command4": _COHERE,
}
