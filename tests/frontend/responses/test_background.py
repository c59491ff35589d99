"""A run ends when its record says so, which is how another API process ends it."""

import msgspec
import pytest

from pyllm.frontend.requests.admission_control import admit
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.responses.answer_format import ResponsesFormat
from pyllm.frontend.responses.background import BackgroundRun
from pyllm.frontend.responses.protocol import Response, ResponseRecord
from pyllm.frontend.responses.response_store import ResponseStore
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.messages import Abort
from tests.frontend.serving import answering, in_process
from tests.waiting import until


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_run_ends_with_its_record(tokenizer: Tokenizer, deletes: bool) -> None:
    core = answering(tokenizer, "Hello")
    core.paused = True
    async with in_process(core, tokenizer) as frontend:
        store = ResponseStore(frontend.state.shared)
        response = Response(id="resp_1", created_at=0, model="tiny", status="in_progress", background=True)
        ended: list[Response] = []
        answer_format = ResponsesFormat(
            response, None, call_name=str, logprobs=None, on_end=ended.append, block_size=16
        )
        context = RequestContext("1", tenant="me")
        await admit(frontend.state, context, 1)
        generation = Generation(frontend.state, [[5]], SamplingParams(), SchedulingParams(), context)
        run = BackgroundRun(generation, answer_format, store, "me", watch_interval=0.001)
        await store.put(ResponseRecord(response, []), "me")
        run.start()
        assert store.running == {"resp_1": run}
        if deletes:
            await store.delete("resp_1", "me")
        else:
            await store.put(ResponseRecord(msgspec.structs.replace(response, status="cancelled"), []), "me")
        await until(lambda: core.sent(Abort))
        assert store.running == {}
        assert [each.status for each in ended] == ([] if deletes else ["cancelled"])
