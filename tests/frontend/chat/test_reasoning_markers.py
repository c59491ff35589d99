"""The markers of reasoning as token ids, and which requests get them."""

from array import array
from typing import Any

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.reasoning_parsers import HARMONY, REASONING_FORMS, THINK, ReasoningForm
from pyllm.frontend.chat.reasoning_markers import ReasoningMarkers
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.wire.messages import Submit
from tests.frontend.openai.test_tools import USER, saying
from tests.frontend.serving import TEMPLATE, Frontend, in_process

OPENED = TEMPLATE + "<think>\n"
MAY_THINK = TEMPLATE + "{# </think> #}"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "Hello"},
    "/v1/completions": {"prompt": "Hello"},
}


def texts(tokenizer: Tokenizer, sequences: Any) -> list[str]:
    return [tokenizer.decode(list(each), skip_special_tokens=False) for each in sequences]


def marked(markers: ReasoningMarkers, opened: bool = False, **more: Any) -> SamplingParams:
    """Parameters that bound the reasoning, with the markers."""
    params = SamplingParams(thinking_token_budget=5, **more)
    markers.resolve(params, opened)
    return params


@pytest.mark.parametrize("name", ["think", "granite", "mistral"])
@pytest.mark.parametrize("fixture", ["tokenizer", "fallback_tokenizer"])
def test_markers_are_found_as_the_tokenizer_writes_them(
    request: pytest.FixtureRequest, name: str, fixture: str
) -> None:
    tokenizer, form = request.getfixturevalue(fixture), REASONING_FORMS[name]
    resolved = marked(ReasoningMarkers(tokenizer, form))
    ends, starts = resolved.reasoning_end_token_ids, resolved.reasoning_start_token_ids
    assert texts(tokenizer, ends)[0] == form.closings[0]
    for closing in form.closings:
        after = tokenizer.encode(f"x\n{closing}", add_special_tokens=False)
        assert any(after[-len(end) :] == list(end) for end in ends)
    for opening in form.openings:
        for text in (f"x\n{opening}", f"x{opening}\n", f"x{opening}\n\n"):
            prompt = tokenizer.encode(text, add_special_tokens=False)
            assert any(prompt[-len(start) :] == list(start) for start in starts), text
    assert {text.strip() for text in texts(tokenizer, starts)} == set(form.openings)


def test_a_marker_that_is_one_token_is_that_token(tokenizer: Tokenizer) -> None:
    resolved = marked(ReasoningMarkers(tokenizer, ReasoningForm(("<|start|>",), ("<tool>",))))
    end = tokenizer.added_token_id("<tool>")
    assert [list(each) for each in resolved.reasoning_end_token_ids] == [[end]]
    assert [tokenizer.added_token_id("<|start|>")] in [list(each) for each in resolved.reasoning_start_token_ids]


def test_reasoning_that_the_prompt_has_opened_has_no_start(tokenizer: Tokenizer) -> None:
    markers = ReasoningMarkers(tokenizer, THINK)
    assert marked(markers, opened=True).reasoning_start_token_ids == ()
    unbounded = SamplingParams()
    markers.resolve(unbounded)
    assert unbounded == SamplingParams()
    own = marked(ReasoningMarkers(tokenizer, None), reasoning_end_token_ids=[[3]])
    assert own == SamplingParams(thinking_token_budget=5, reasoning_end_token_ids=[[3]])


@pytest.mark.parametrize(("form", "text"), [(None, "no reasoning parser"), (HARMONY, "several messages")])
def test_reasoning_without_a_known_end_is_refused(tokenizer: Tokenizer, form: ReasoningForm | None, text: str) -> None:
    markers = ReasoningMarkers(tokenizer, form)
    assert text in markers.missing
    with pytest.raises(RequestError, match=f"^thinking_token_budget is not supported here: .*{text}") as refused:
        marked(markers)
    assert refused.value.parameter == "thinking_token_budget"


def test_a_plain_prompt_has_reasoning_or_a_constraint(tokenizer: Tokenizer) -> None:
    constraint = StructuredOutputsParams(regex="a")
    markers = ReasoningMarkers(tokenizer, THINK)
    plain = SamplingParams(thinking_token_budget=5)
    markers.resolve_plain(plain)
    assert plain == marked(markers)
    with pytest.raises(RequestError, match="leave thinking_token_budget out"):
        markers.resolve_plain(SamplingParams(thinking_token_budget=5, structured_outputs=constraint))
    prepared = marked(markers, structured_outputs=constraint)  # of a conversation, where it follows the reasoning
    markers.resolve_plain(prepared)
    assert prepared == marked(markers, structured_outputs=constraint)


def test_the_template_shows_the_markers(tokenizer: Tokenizer) -> None:
    def missing(template: str) -> str:
        return ReasoningMarkers.shown_by(ChatTemplate(template, "", ""), tokenizer).missing

    assert not missing(OPENED)
    assert "no reasoning parser" in missing(TEMPLATE)
    assert "no reasoning parser" in ReasoningMarkers.shown_by(None, tokenizer).missing


async def bounded(frontend: Frontend, path: str, **body: Any) -> Submit:
    response = await frontend.http.post(path, json=BODIES[path] | {"thinking_token_budget": 6} | body)
    assert response.status_code == 200, response.text
    return frontend.core.sent(Submit)[-1]


@pytest.mark.parametrize("path", BODIES)
async def test_a_budget_reaches_the_core_from_every_route(tokenizer: Tokenizer, path: str) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, MAY_THINK) as frontend:
        sampling = (await bounded(frontend, path)).sampling
        none = (await bounded(frontend, path, thinking_token_budget=-1)).sampling
    assert sampling.thinking_budget == 6
    assert texts(tokenizer, [array("i", sampling.thinking_ends[0])]) == ["</think>"]
    assert "<think>" in texts(tokenizer, [array("i", start) for start in sampling.thinking_starts])
    assert not none.thinking_ends


async def test_in_a_chat_only_the_template_opens_reasoning(tokenizer: Tokenizer) -> None:
    """Not what a user writes, unless a message of the assistant's goes on within it."""
    path, asked = "/v1/chat/completions", {"role": "user", "content": "What is <think>"}
    begun = {"role": "assistant", "content": "<think>Well"}
    going_on = {"messages": [USER, begun], "add_generation_prompt": False, "continue_final_message": True}
    async with in_process(saying(tokenizer, "ok"), tokenizer, OPENED) as frontend:
        assert not (await bounded(frontend, path)).sampling.thinking_starts
    async with in_process(saying(tokenizer, "ok"), tokenizer, MAY_THINK) as frontend:
        assert (await bounded(frontend, path, messages=[asked])).sampling.thinking_starts
        assert not (await bounded(frontend, path, **going_on)).sampling.thinking_starts


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
async def test_a_model_without_a_parser_refuses_the_field_by_the_callers_name(
    tokenizer: Tokenizer, path: str, name: str
) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, TEMPLATE) as frontend:
        response = await frontend.http.post(path, json=BODIES[path] | {name: 0})
        assert not frontend.core.sent(Submit)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert response.json()["error"]["message"].startswith(f"{name} is not supported here: there is no reasoning parser")
