"""The cost of fields without effect: reading a body, the second pass over it, and the header that names them.

`without` is the cost for the body without them, also with the second pass; `of_look` is that pass and the header alone.
Each figure is the best of some runs, taken in turn, since other load only adds to it.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.record import Record
from pyllm.frontend.anthropic.protocol import MessagesRequest
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.ignored_fields import IgnoredFields, RequestFields
from pyllm.frontend.openai.protocol import ChatRequest

RUNS = 200
RUN_SECONDS = 0.004
NUM_FIELDS = 40
# A request like those of coding agents: a long system prompt, many tools, results of calls.
NUM_TOOLS = 25
NUM_TURNS = 60
TURN_CHARACTERS = 700

Json = dict[str, Any]


def run() -> Iterator[Record]:
    chat: Json = {"model": "m", "messages": [{"role": "user", "content": "How is the sea?"}], "max_tokens": 16}
    others = {f"field_{number}": number for number in range(NUM_FIELDS)}
    yield _compared("a small chat", ChatRequest, chat, chat | others)
    yield _compared("a long conversation", MessagesRequest, _conversation({}, {}, {}), _nested())


def _nested() -> Json:
    tool = {"defer_loading": True, "owner": {"team": ["a", "b"], "id": 7}}
    block = {"caller_id": "block", "origin": {"kind": "editor", "line": 12}, "citations": [{"x": 1}]}
    return _conversation(tool, block, {f"field_{number}": {"on": True} for number in range(NUM_FIELDS)})


def _conversation(of_tool: Json, of_block: Json, of_request: Json) -> Json:
    text = "The sea is calm and the wind is low. "
    tools = [
        {
            "name": f"tool_{number}",
            "description": text * 30,
            "input_schema": {"type": "object", "properties": {f"p{part}": {"type": "string"} for part in range(12)}},
            **of_tool,
        }
        for number in range(NUM_TOOLS)
    ]
    words = text * (TURN_CHARACTERS // len(text))
    turns: list[Json] = []
    for number in range(NUM_TURNS // 2):
        call = {"type": "tool_use", "id": f"t{number}", "name": "tool_1", "input": {"p0": words}, **of_block}
        turns.append({"role": "assistant", "content": [{"type": "text", "text": "Look:", **of_block}, call]})
        result = [{"type": "text", "text": words, **of_block}]
        answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result, **of_block}
        turns.append({"role": "user", "content": [answer]})
    first = {"role": "user", "content": [{"type": "text", "text": words, **of_block}]}
    system = [{"type": "text", "text": text * 250, **of_block}]
    return {"model": "m", "max_tokens": 16, "system": system, "tools": tools, "messages": [first, *turns], **of_request}


def _compared(case: str, kind: type[Struct], plain: Json, with_fields: Json) -> Record:
    decoder = msgspec.json.Decoder(kind)
    ignored = IgnoredFields()

    def read(body: bytes) -> None:
        decoder.decode(body)
        look(body)

    def look(body: bytes) -> None:
        fields = RequestFields()
        find_ignored(body, kind, fields)
        ignored.count(fields)

    few, many = msgspec.json.encode(plain), msgspec.json.encode(with_fields)
    steps = [(read, few), (read, many), (look, few), (look, many)]
    best = [float("inf")] * len(steps)
    for _ in range(RUNS):
        for index, (work, body) in enumerate(steps):
            num_calls, begin = 0, time.perf_counter()
            while (seconds := time.perf_counter() - begin) < RUN_SECONDS:
                work(body)
                num_calls += 1
            best[index] = min(best[index], seconds / num_calls * 1e6)
    without, value, _, of_look = best
    return {
        "name": "unknown_fields.us",
        "value": round(value, 1),
        "unit": "us",
        "kind": case,
        "without": round(without, 1),
        "of_look": round(of_look, 1),
        "kilobytes": round(len(many) / 1000, 1),
    }
