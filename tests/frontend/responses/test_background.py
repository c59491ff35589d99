"""A run ends when its record says so, which is how another API process ends it."""

import msgspec
import pytest

from pyllm.frontend.admission import admit
from pyllm.frontend.generation import Generation
from pyllm.frontend.request_context import RequestContext
from pyllm.frontend.responses.background import BackgroundRun
from pyllm.frontend.responses.form import ResponseForm
from pyllm.frontend.responses.kept import KeptResponses
from pyllm.frontend.responses.protocol import Response, ResponseRecord
from pyllm.frontend.tokenizer import Tokenizer
from pyllm.messages import Abort
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import SchedulingParams
from tests.frontend.serving import answering, in_process
from tests.waiting import until


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_run_ends_with_its_record(tokenizer: Tokenizer, deletes: bool) -> None:
    core = answering(tokenizer, "Hello")
    core.paused = True
    async with in_process(core, tokenizer) as frontend:
        kept = KeptResponses(frontend.state.shared)
        response = Response(id="resp_1", created_at=0, model="tiny", status="in_progress", background=True)
        ended: list[Response] = []
        form = ResponseForm(response, None, call_name=str, logprobs=None, on_end=ended.append, block_size=16)
        context = RequestContext("1", tenant="me")
        await admit(frontend.state, context)
        generation = Generation(frontend.state, [[5]], SamplingParams(), SchedulingParams(), context)
        run = BackgroundRun(generation, form, kept, "me", watch_interval=0.001)
        await kept.put(ResponseRecord(response, []), "me")
        run.start()
        assert kept.running == {"resp_1": run}
        if deletes:
            await kept.delete("resp_1", "me")
        else:
            await kept.put(ResponseRecord(msgspec.structs.replace(response, status="cancelled"), []), "me")
        await until(lambda: core.sent(Abort))
        assert kept.running == {}
        assert [each.status for each in ended] == ([] if deletes else ["cancelled"])
