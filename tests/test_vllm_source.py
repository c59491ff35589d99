"""Every name that vLLM's own source has is known here: the same, without effect, or refused by name.

`make oracle` unpacks the source into `build/vllm`. It is read, never imported.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyllm import LLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import option_names
from pyllm.config.vllm_flags import OTHERS, VLLM_FLAGS, explain_flag
from pyllm.frontend.anthropic.protocol import CountTokensRequest, MessagesRequest
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.embedding_protocol import EmbeddingRequest
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest
from pyllm.frontend.openai.tokenization import DetokenizeRequest, TokenizeRequest
from pyllm.frontend.responses.protocol import ResponsesRequest
from pyllm.parameters.vllm_parameters import METHODS

pytestmark = pytest.mark.oracle

SOURCE = Path(__file__).parents[1] / "build/vllm/vllm"
ENGINE, SERVER = "engine/arg_utils.py", "entrypoints/common/cli_args.py"
OPENAI, ANTHROPIC = "entrypoints/openai", "entrypoints/anthropic/protocol.py"
EMBED, TOKENIZE = "entrypoints/pooling/embed/protocol.py", "entrypoints/serve/tokenize/protocol.py"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
# vLLM's class of each body and its file, and ours with what it must have.
BODIES: dict[str, tuple[str, type[msgspec.Struct], dict[str, Any]]] = {
    "ChatCompletionRequest": (f"{OPENAI}/chat_completion/protocol.py", ChatRequest, CHAT),
    "CompletionRequest": (f"{OPENAI}/completion/protocol.py", CompletionRequest, {"prompt": "x"}),
    "ResponsesRequest": (f"{OPENAI}/responses/protocol.py", ResponsesRequest, {"input": "x"}),
    "AnthropicMessagesRequest": (ANTHROPIC, MessagesRequest, CHAT | {"max_tokens": 5}),
    "AnthropicCountTokensRequest": (ANTHROPIC, CountTokensRequest, CHAT),
    "EmbeddingCompletionRequest": (EMBED, EmbeddingRequest, {"input": "x"}),
    "EmbeddingChatRequest": (EMBED, EmbeddingRequest, {"input": "x"}),
    "TokenizeCompletionRequest": (TOKENIZE, TokenizeRequest, {"prompt": "x"}),
    "TokenizeChatRequest": (TOKENIZE, TokenizeRequest, CHAT),
    "DetokenizeRequest": (TOKENIZE, DetokenizeRequest, {"tokens": [1]}),
}
PARAMETERS: dict[str, tuple[str, type[msgspec.Struct], dict[str, Any]]] = {
    "SamplingParams": ("parameters/sampling_params.py", SamplingParams, {}),
    "StructuredOutputsParams": ("parameters/sampling_params.py", StructuredOutputsParams, {"choice": ["a"]}),
    "BeamSearchParams": ("parameters/sampling_params.py", BeamSearchParams, {"beam_width": 2, "max_tokens": 3}),
    "PoolingParams": ("pooling_params.py", PoolingParams, {}),
}
SET_BY_THE_ENGINE = {"PoolingParams": {"output_kind"}}


def classes_of(file: str) -> dict[str, ast.ClassDef]:
    return {each.name: each for each in parsed(file).body if isinstance(each, ast.ClassDef)}


def parsed(file: str) -> ast.Module:
    assert (SOURCE / file).exists(), f"there is no {file} in build/vllm: make oracle puts it there"
    return ast.parse((SOURCE / file).read_text())


def fields_of(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, ast.expr | None]:
    """The public fields of a class and of its bases among these classes, with their defaults."""
    found: dict[str, ast.expr | None] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= fields_of(base.id, classes)
    for line in classes[name].body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
            found[line.target.id] = line.value
    assert found, name
    return found


def constants(fields: dict[str, ast.expr | None]) -> dict[str, Any]:
    """The defaults that are written as a value, or as that of `Field(...)`."""
    found = {}
    for name, value in fields.items():
        given = value.keywords if isinstance(value, ast.Call) else []
        default = next((each.value for each in given if each.arg == "default"), value)
        if default is not None and not isinstance(default, ast.Attribute | ast.Call):
            found[name] = ast.literal_eval(default)
    return found


def flags() -> Iterator[str]:
    """Each name of each flag of `vllm serve`."""
    for call in chain(ast.walk(parsed(ENGINE)), ast.walk(parsed(SERVER))):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            yield from (str(word.value) for word in call.args if isinstance(word, ast.Constant))
    yield from ("--" + name.replace("_", "-") for name in fields_of("FrontendArgs", classes_of(SERVER)))


def test_every_flag_is_known() -> None:
    theirs = {flag for flag in flags() if flag.startswith("-")}
    ours = {name for flag in VLLM_FLAGS.values() for name in (flag.flag, *flag.aliases)}
    assert len(theirs) > 300
    assert sorted(theirs - ours - {f"--{name}" for name in chain(*OTHERS.values())}) == []


def test_every_keyword_of_an_engine_is_known() -> None:
    llm = classes_of("entrypoints/llm.py")["LLM"]
    (init,) = (each for each in llm.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    names = [argument.arg for argument in (*init.args.args[1:], *init.args.kwonlyargs)]
    names += fields_of("AsyncEngineArgs", classes_of(ENGINE))
    assert len(names) > 200
    flag_names = {name: name.replace("_", "-") for name in names if name not in option_names(EngineConfig)}
    assert [name for name, flag in flag_names.items() if flag not in VLLM_FLAGS and not explain_flag(flag)] == []


def test_every_method_of_llm_is_there_or_says_what_to_use() -> None:
    files = (
        "entrypoints/llm.py",
        *(f"entrypoints/{name}/offline.py" for name in ("generate/beam_search", "pooling", "rl")),
    )
    classes = [each for file in files for each in classes_of(file).values()]
    lines = [line for each in classes for line in each.body if isinstance(line, ast.FunctionDef)]
    methods = {line.name for line in lines if not line.name.startswith("_")}
    assert len(methods) > 20
    assert methods - set(dir(LLM)) - set(METHODS) == set()


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_known_and_may_have_its_default(name: str) -> None:
    file, kind, needed = PARAMETERS[name]
    theirs = fields_of(name, classes_of(file))
    assert set(theirs) - set(kind.__struct_fields__) == SET_BY_THE_ENGINE.get(name, set())
    kind(**constants(theirs) | needed)


@pytest.mark.parametrize("name", BODIES)
def test_every_field_of_a_request_is_known_and_may_have_its_default(name: str) -> None:
    file, kind, needed = BODIES[name]
    classes = classes_of(file)
    if file == EMBED:
        classes |= classes_of("entrypoints/pooling/base/protocol.py")
    theirs = fields_of(name, classes)
    assert set(theirs) - set(kind.__struct_fields__) == set()
    refuse_unsupported(msgspec.json.decode(msgspec.json.encode(constants(theirs) | needed), type=kind))
