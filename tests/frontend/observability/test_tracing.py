"""Spans as a collector gets them: the caller's child, with vLLM's attributes."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pyllm.frontend.observability.tracing import Tracer
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.serving import answering, in_process

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_is_a_child_of_its_callers_span(tokenizer: Tokenizer, streamed: bool) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    async with in_process(answering(tokenizer, "ok"), tokenizer, tracer=tracer) as frontend:
        body = {"prompt": "x", "max_tokens": 9, "temperature": 0.5, "n": 2, "stream": streamed}
        headers = {
            "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01",
            "tracestate": "vendor=1",
            "x-request-id": "mine",
        }
        assert (await frontend.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        unsampled = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
        await frontend.http.post("/v1/completions", json=body, headers=unsampled)
        await frontend.http.post("/v1/completions", json=body)
        tracer.close()
    child, alone = exporter.get_finished_spans()
    assert child.name == "llm_request"
    assert child.parent is not None
    assert (f"{child.parent.trace_id:032x}", f"{child.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert child.context.trace_id == child.parent.trace_id
    assert child.context.trace_state.get("vendor") == "1"
    assert alone.parent is None
    assert child.attributes is not None
    attributes = dict(child.attributes)
    first_token, whole = attributes.pop("gen_ai.latency.time_to_first_token"), attributes.pop("gen_ai.latency.e2e")
    assert isinstance(first_token, float)
    assert isinstance(whole, float)
    assert 0 < first_token <= whole
    assert attributes == {
        "gen_ai.response.model": "tiny",
        "gen_ai.request.id": "mine",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.n": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.usage.prompt_tokens": 1,
        "gen_ai.usage.completion_tokens": 6,
        "gen_ai.usage.cached_tokens": 2,
    }


async def test_embeddings_have_a_span_too(tokenizer: Tokenizer) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    async with in_process(answering(tokenizer, "ok"), tokenizer, tracer=tracer) as frontend:
        assert (await frontend.http.post("/v1/embeddings", json={"input": ["x", "y"]})).status_code == 200
        tracer.close()
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.num_sequences"] == span.attributes["gen_ai.usage.prompt_tokens"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert "gen_ai.request.temperature" not in span.attributes
