"""What the tests of `/v1/responses` share: the events of a stream, and what they add up to."""

from typing import Any

import msgspec


def named_events(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events, which are numbered, and each of which says its type twice."""
    *parts, end = text.split("\n\n")
    assert end == ""
    events = []
    for number, part in enumerate(parts):
        name, _, data = part.partition("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == number
    return events


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the events before the last add up to; checks their order, and each `done` with its deltas."""
    created, in_progress, *events = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"]["output"] == []
    output: list[dict[str, Any]] = []
    text = ""
    for event in events[:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(event["item"])
            text = ""
            continue
        item = output[-1]
        assert event["output_index"] == len(output) - 1
        match kind:
            case "content_part.added":
                item["content"].append(event["part"])
            case (
                "output_text.delta"
                | "reasoning_text.delta"
                | "function_call_arguments.delta"
                | "custom_tool_call_input.delta"
            ):
                text += event["delta"]
                if event.get("logprobs"):
                    item["content"][-1]["logprobs"] += event["logprobs"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == text
                item["content"][-1]["text"] = text
            case "function_call_arguments.done":
                assert event["arguments"] == text
                item["arguments"] = text
            case "custom_tool_call_input.done":
                assert event["input"] == text
                item["input"] = text
            case "content_part.done":
                assert event["part"] == item["content"][-1]
            case "output_item.done" if item["type"] in ("local_shell_call", "apply_patch_call"):
                output[-1] = event["item"]  # It has no deltas.
            case "output_item.done":
                item["status"] = event["item"]["status"]
                assert event["item"] == item
            case _:
                raise AssertionError(kind)
    return output
