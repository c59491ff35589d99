"""Harmony's answers follow their grammar, compiled as a worker would."""

from typing import Any

import pytest

from pyllm.frontend.chat.harmony_grammar import harmony_answer
from tests.frontend.chat.test_tool_grammar import TOOLS, Vocabulary

ASIDE = "<|channel|>analysis<|message|>Hm, <final>.<|end|><|start|>assistant"
SAID = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'
OTHER = '<|channel|>commentary to=functions.we <|constrain|>json<|message|>{"days": 3}'
FINAL = "<|channel|>final<|message|>yes"


@pytest.fixture(scope="module", params=["added", "special"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(request.param, end="<|call|>")


def test_an_answer_ends_with_a_call_or_the_final_message(vocabulary: Vocabulary) -> None:
    def accepts(text: str, content: str | None = None, must_call: bool = False, tools: Any = TOOLS) -> bool:
        return vocabulary.accepts(harmony_answer(tools, content, must_call, vocabulary.token_id), text)

    for text in (CALL, OTHER, ASIDE + CALL, ASIDE + SAID + OTHER):
        assert accepts(text)
        assert accepts(text, must_call=True)
        assert accepts(text, 'start: "yes"')
        assert not accepts(text, 'start: "yes"', tools=[])
        assert not accepts(text.replace("Rome", "Gotham").replace("3", '"x"'))
        assert not accepts(text.replace("weather", "clock").replace("we ", "clock "))
    for text in (FINAL, ASIDE + FINAL):
        assert accepts(text + " and no")
        assert not accepts(text, must_call=True)
        assert accepts(text, 'start: "yes"', tools=[])
        assert not accepts(text + " and no", 'start: "yes"', tools=[])
    for text in ("yes", "", ASIDE, '[{"name": "we"'):
        assert not accepts(text)
        assert not accepts(text, 'start: "yes"')
