"""The time to convert a conversation of 200 messages to the form for a chat template.

`without` is the time for a template that accepts any form. A template is given by the traits that it lacks, as
`template_traits` finds them for models. Each figure is the best of some runs, since other load only adds to it.
"""

import timeit
from collections.abc import Iterator

from benchmarks.record import Record
from pyllm.frontend.chat.message_shapes import shaped
from pyllm.frontend.chat.template_traits import TemplateTraits
from pyllm.frontend.text.templates import Message

RUNS = 50
CALLS_A_RUN = 20
NUM_MESSAGES = 200
TEXT = "The sea is calm and the wind is low. " * 10
LACKING = {
    "all in words (Gemma 2)": ["tools", "tool_calls", "tool_results", "system", "two_users", "two_assistants"],
    "calls in words (ChatML)": ["tools", "tool_calls", "tool_results"],
    "short ids (Mistral)": ["call_ids", "user_after_result", "text_with_call", "text_before_call", "late_system"],
    "single calls (Llama 3)": ["text_with_call", "several_calls"],
    "content in parts": ["text_content"],
}


def run() -> Iterator[Record]:
    none = TemplateTraits()
    for calls_a_turn in (1, 2):
        messages = _conversation(calls_a_turn)
        for kind, lacking in LACKING.items():
            value, without = _best(messages, TemplateTraits(**dict.fromkeys(lacking, False))), _best(messages, none)
            yield {
                "name": "shaping.us",
                "value": round(value, 1),
                "unit": "us",
                "kind": f"{kind}, {calls_a_turn} a turn",
                "without": round(without, 1),
            }


def _conversation(calls_a_turn: int) -> list[Message]:
    """Turns of a user's text, calls and their results."""
    messages: list[Message] = [{"role": "system", "content": TEXT}]
    while len(messages) < NUM_MESSAGES:
        ids = [f"call_{len(messages)}_{number}" for number in range(calls_a_turn)]
        calls = [
            {"id": call_id, "type": "function", "function": {"name": "look", "arguments": {"path": f"/{call_id}"}}}
            for call_id in ids
        ]
        messages.append({"role": "user", "content": TEXT})
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call_id, "content": TEXT} for call_id in ids]
    return messages[:NUM_MESSAGES]


def _best(messages: list[Message], traits: TemplateTraits) -> float:
    """The least microseconds of several runs."""
    times = timeit.repeat(lambda: shaped(messages, None, traits), number=CALLS_A_RUN, repeat=RUNS)
    return min(times) / CALLS_A_RUN * 1e6
