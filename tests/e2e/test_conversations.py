"""A conversation that goes on has its beginning in the prefix cache, also where its messages take another form."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server
from tests.frontend.chat.conversations import FIRST, as_sent, calls, result, system, user
from tests.frontend.chat.small_templates import SMALL_TEMPLATES
from tests.tiers import full

BLOCK_SIZE = 16
# Tokens at the end of a prompt that the next turn may have otherwise: the opening of an answer, and the last message's
# end, which the next one may join.
END = 8


@pytest.mark.parametrize("name", ["system_first", *(full(name) for name in ("short_ids", "turns_only"))])
def test_ten_turns_with_late_system_messages_are_cached(name: str, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(SMALL_TEMPLATES[name].source)
    messages: list[dict[str, Any]] = [system("You are a patient clerk who answers in one short sentence.")]
    known = 0
    with Server("--chat-template", str(template), "--block-size", str(BLOCK_SIZE)) as server, server.http() as http:
        for turn in range(10):
            late = [system(f"Note {turn}: the office closes at {turn} today.")] if turn % 2 else []
            messages += [user(f"Question {turn}: when does office number {turn} close?"), *late]
            if turn % 3 == 2:
                messages += as_sent([calls(FIRST), result(FIRST)])
            body = {"messages": messages, "max_tokens": 1, "temperature": 0}
            answer = http.post("/v1/chat/completions", json=body).json()
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= (known - END) // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE, f"turn {turn}"
            known = usage["prompt_tokens"]
            messages.append({"role": "assistant", "content": f"It closes at {turn}."})
    assert known > 300
