"""The forms of tool calls, by vLLM's names of their parsers. A form makes parsers, and recognises its templates."""

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
from pyllm.frontend.chat.parsers.marked_calls import CallList, Closed, gemma_call, mistral_calls
from pyllm.frontend.chat.parsers.minimax_m3_calls import MINIMAX_TOKEN, MinimaxM3Calls
from pyllm.frontend.chat.parsers.parsed_pieces import CallWriter, Parser
from pyllm.frontend.chat.parsers.python_calls import PythonCalls
from pyllm.frontend.chat.parsers.tagged_calls import TaggedCall
from pyllm.frontend.chat.parsers.tool_call_finder import Body, MarkedCalls
from pyllm.frontend.chat.parsers.tool_call_reader import CallReader, CallShape
from pyllm.frontend.chat.parsers.values.argument_tags import DEEPSEEK, DSML, GLM, HUNYUAN, MINIMAX, QWEN, Tags
from pyllm.frontend.chat.parsers.values.argument_types import Schemas

# How a grammar writes calls; with `none` it cannot.
Style = Literal["none", "closed", "mistral", "bare", "list", "tagged", "harmony"]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The form in which models of a family write tool calls.

    `make_parser` makes a machine for one sample's text; it is given the schemas of the tools by name. A template that
    has all of one of the `signs` is of such a model. Calls begin with one of the `markers`, if it has any; complete
    ones at the end of reasoning that was not closed are calls. The rest is for grammars, which write the first marker:
    the marker after calls, the keys of a call's object, and the tags of its arguments.
    """

    make_parser: Callable[[Schemas], Parser]
    signs: tuple[tuple[str, ...], ...] = ()
    style: Style = "none"
    markers: tuple[str, ...] = ()
    closing: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    tags: Tags | None = None

    @property
    def marker(self) -> str:
        """The first of the markers, or nothing."""
        return self.markers[0] if self.markers else ""


HERMES_OPENING, HERMES_CLOSING = "<tool_call>", "</tool_call>"
MISTRAL_ARGUMENTS = "[ARGS]"
LLAMA_OPENER = "{"

_PYTHON_TAG = "<|python_tag|>"


def llama_parser(schemas: Schemas) -> Parser:
    """Llama 3's calls: behind their marker, or bare. Bare ones are of these tools, and have arguments."""
    shape = CallShape(names=schemas or None, needs_arguments=True)
    return MarkedCalls(
        [_PYTHON_TAG],
        lambda writer: CallList(writer, "row"),
        make_bare_body=lambda writer: CallList(writer, "row", shape),
    )


def leading_llama_parser(names: Collection[str]) -> Parser:
    """Llama 3's calls as a grammar writes them: bare calls are at the beginning, and their name comes first."""
    shape = CallShape(names=names, needs_arguments=True, in_order=True)
    return MarkedCalls([_PYTHON_TAG], lambda writer: CallList(writer, "row", shape), opener=LLAMA_OPENER)


def _form(
    markers: tuple[str, ...],
    make_calls: Callable[[CallWriter, Schemas], Body],
    *signs: tuple[str, ...],
    style: Style = "none",
    closing: str = "",
    closings: tuple[str, ...] = (),
    reads_closing: bool = False,
    keys: tuple[str, str] = ("name", "arguments"),
    tags: Tags | None = None,
    kept: tuple[str, ...] = (),
    opener: str = "",
) -> ToolForm:
    """A form with markers, of which the first is the default sign. With `reads_closing` the calls read all closings."""

    def make_parser(schemas: Schemas) -> Parser:
        def make_body(writer: CallWriter) -> Body:
            calls = make_calls(writer, schemas)
            return Closed(calls, closing) if closing and not reads_closing else calls

        return MarkedCalls(markers, make_body, kept=kept, closings=(closing, *closings), opener=opener)

    return ToolForm(make_parser, signs or (markers[:1],), style, (*markers, *kept), closing, keys, tags)


def _call_list(writer: CallWriter, schemas: Schemas) -> Body:
    del schemas
    return CallList(writer, "brackets")


def _header_form(marker: str, tags: HeaderTags, *signs: tuple[str, ...]) -> ToolForm:
    """A form of calls with headers. A call may come without the marker of its section, or has none."""
    return _form(
        (marker,) if marker else (),
        lambda writer, schemas: HeaderCalls(writer, tags),
        *signs,
        closing=tags.end,
        closings=(tags.closing,),
        reads_closing=True,
        kept=(tags.begin,),
    )


def _tagged_form(marker: str, closing: str, tags: Tags, *signs: tuple[str, ...]) -> ToolForm:
    return _form(
        (marker,),
        lambda writer, schemas: TaggedCall(writer, tags, marker, closing, schemas),
        *signs,
        style="none" if tags.text_key else "tagged",
        closing=closing,
        reads_closing=True,
        tags=tags,
        kept=(tags.before_name,) if tags.alone else (),
    )


def _dsml_form(section: str) -> ToolForm:
    return _tagged_form(f"<{DSML}{section}>", f"</{DSML}{section}>", DEEPSEEK, (DSML, f"{section}>"))


def _gemma_form(marker: str, closing: str, delimiter: str) -> ToolForm:
    return _form((marker,), lambda writer, schemas: gemma_call(writer, delimiter), closing=closing)


def _lfm_calls(writer: CallWriter, schemas: Schemas) -> Body:
    """LFM2's calls: in Python, or in JSON where the model was asked for it."""
    del schemas

    def choose(beginning: str) -> Body | None:
        if beginning == "[":
            return None
        return CallList(writer, "either") if beginning.endswith("{") else PythonCalls(writer, "brackets")

    return ChosenCalls(choose)


_HERMES = _form(
    (HERMES_OPENING,), lambda writer, schemas: CallList(writer, "either"), closing=HERMES_CLOSING, style="closed"
)
_QWEN = _tagged_form(HERMES_OPENING, HERMES_CLOSING, QWEN, ("<function=", "<parameter="))
_GLM = _tagged_form(HERMES_OPENING, HERMES_CLOSING, GLM, ("<arg_key>",))
_LLAMA = ToolForm(
    llama_parser,
    ((_PYTHON_TAG,), ('"parameters": dictionary of argument name and its value',)),
    "bare",
    (_PYTHON_TAG,),
    keys=("name", "parameters"),
)
_COHERE = _form(
    ("<|START_ACTION|>",),
    lambda writer, schemas: CallList(writer, "brackets", CallShape("tool_name", ("parameters",))),
    style="list",
    closing="<|END_ACTION|>",
    keys=("tool_name", "parameters"),
)

# The order matters: a template that has the signs of several forms has the first.
TOOL_FORMS: dict[str, ToolForm] = {
    "openai": ToolForm(lambda schemas: HarmonyParser(), ((HARMONY_CHANNEL, "commentary"),), "harmony"),
    "seed_oss": _tagged_form("<seed:tool_call>", "</seed:tool_call>", QWEN),
    "minimax_m2": _tagged_form("<minimax:tool_call>", "</minimax:tool_call>", MINIMAX),
    "minimax_m3": _form((f"{MINIMAX_TOKEN}<tool_call>",), MinimaxM3Calls, (MINIMAX_TOKEN,)),
    "hy_v3": _tagged_form(
        "<tool_calls:opensource>", "</tool_calls:opensource>", HUNYUAN, ("<tool_calls{}>", "<tool_sep{}>")
    ),
    "deepseek_v32": _dsml_form("function_calls"),
    "deepseek_v4": _dsml_form("tool_calls"),
    "deepseek_v3": _header_form(DEEPSEEK_OPENING, DEEPSEEK_V3, (DEEPSEEK_OPENING, "```json")),
    "deepseek_v31": _header_form(DEEPSEEK_OPENING, DEEPSEEK_V31),
    "kimi_k2": _header_form("<|tool_calls_section_begin|>", KIMI, ("tool_calls_section_begin|>",)),
    "functionary_v3_1": _header_form("", FUNCTIONARY, ('<function=example_function_name>{"',)),
    "apertus": _form(
        ("<|tools_prefix|>",),
        lambda writer, schemas: CallList(writer, "brackets", CallShape(is_keyed=True)),
        closing="<|tools_suffix|>",
    ),
    "nemotron_json": _form(("<TOOLCALL>",), _call_list, style="list", closing="</TOOLCALL>"),
    "apriel": _form(("<tool_calls>",), _call_list, ("<tool_calls>[",), style="list", closing="</tool_calls>"),
    "minimax": _form(
        ("<tool_calls>",),
        lambda writer, schemas: CallList(writer, "row"),
        ("<tool_calls>", "<tool-name>"),
        closing="</tool_calls>",
    ),
    "lfm2": _form(
        ("<|tool_call_start|>",),
        _lfm_calls,
        *(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        closing="<|tool_call_end|>",
    ),
    "gigachat3": _form(
        ("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        lambda writer, schemas: CallReader(writer),
        ("function call", "<|role_sep|>"),
        closing="<|message_sep|>",
    ),
    "qwen3_coder": _QWEN,
    "glm45": _GLM,
    "gemma4": _gemma_form("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": _gemma_form("<start_function_call>", "<end_function_call>", "<escape>"),
    "granite": _form(("<|tool_call|>", HERMES_OPENING), _call_list, style="list"),
    "cohere_command3": _COHERE,
    "phi4_mini_json": _form(("functools",), _call_list, ("functools[",), style="list"),
    "olmo3": _form(
        ("<function_calls>",), lambda writer, schemas: PythonCalls(writer, "lines"), closing="</function_calls>"
    ),
    "hermes": _HERMES,
    "mistral": _form(("[TOOL_CALLS]",), lambda writer, schemas: mistral_calls(writer), style="mistral"),
    "llama4_pythonic": _form(
        ("<|python_start|>",),
        lambda writer, schemas: PythonCalls(writer, "brackets", schemas or None),
        *(("<|python_start|>",), ("<|header_start|>", "[func_name1(")),
        closing="<|python_end|>",
        opener="[",
    ),
    "pythonic": _form(
        (), lambda writer, schemas: PythonCalls(writer, "brackets", schemas or None), ("[func_name1(",), opener="["
    ),
    "llama3_json": _LLAMA,
    # Other names of the same forms.
    "qwen3_xml": _QWEN,
    "mimo": _QWEN,
    "step3p5": _QWEN,
    "glm47": _GLM,
    "ling3": _GLM,
    "granite4": _HERMES,
    "llama4_json": _LLAMA,
    "cohere_command4": _COHERE,
}
