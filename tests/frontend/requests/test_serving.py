"""A generation is prepared once its request is admitted, and charged for all of its prompts."""

import pytest

from pyllm.config.api_keys import Allowance
from pyllm.frontend.chat.conversation import Prepared
from pyllm.frontend.http.failure import RateLimitError
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.serving import generate
from pyllm.frontend.shared.messages import Granted
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from tests.frontend.serving import answering, in_process

ALLOWANCE = Allowance(max_requests_per_minute=1, max_tokens_per_minute=100)


async def test_the_order_is_admit_prepare_charge(tokenizer: Tokenizer) -> None:
    contexts = []

    async def prepare() -> Prepared:
        budgets = contexts[-1].budgets
        assert isinstance(budgets, Granted)  # It is admitted, and not charged yet.
        assert budgets.tokens is not None
        assert budgets.tokens.remaining == 100
        return Prepared([[5, 6, 7], [8]], SamplingParams(n=2))

    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        contexts.append(RequestContext("1", tenant="a", allowance=ALLOWANCE))
        prepared, generation = await generate(frontend.state, contexts[0], SchedulingParams(), 4, prepare)
        assert (generation.num_choices, generation.counts.prompt, len(prepared.prompts)) == (4, 4, 2)
        assert contexts[0].budgets.tokens.remaining == 96
        contexts.append(RequestContext("2", tenant="a", allowance=ALLOWANCE))
        with pytest.raises(RateLimitError):  # Else `prepare` would fail: there is no grant.
            await generate(frontend.state, contexts[1], SchedulingParams(), 1, prepare)
    assert contexts[1].ticket is None
