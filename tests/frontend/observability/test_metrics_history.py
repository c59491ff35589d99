"""The history has what `/metrics` had, look by look, and forgets the oldest."""

import re

from prometheus_client.parser import text_string_to_metric_families

from pyllm.frontend.observability.metrics_history import MAX_LOOKS, SERIES, MetricsHistory
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.observability.test_metrics import Clock
from tests.frontend.page.test_page_files import STATIC
from tests.frontend.serving import answering, in_process


async def test_looks_have_the_series_of_metrics_and_their_ages(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "Hello world"), tokenizer) as frontend:
        history = frontend.state.history
        empty = (await frontend.http.get("/metrics/history")).json()
        await history.look()
        await frontend.http.post("/v1/completions", json={"prompt": "Hello"})
        await history.look()
        text = (await frontend.http.get("/metrics")).text
        answer = (await frontend.http.get("/metrics/history")).json()
    assert empty == {"ages": [], "series": {}}
    assert answer["ages"] == sorted(answer["ages"], reverse=True)
    assert answer["ages"][-1] >= 0
    expected = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in SERIES:
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items() if name != "model_name")
                expected[f"{sample.name}{{{labels}}}"] = sample.value
    assert {name: values[1] for name, values in answer["series"].items()} == expected
    assert answer["series"]['vllm:generation_tokens_total{engine="0"}'] == [0, 3]


async def test_a_core_that_is_away_leaves_nulls(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        history = frontend.state.history
        await history.look()
        frontend.core.answers_hello = False
        frontend.core.on_disconnect()
        await history.look()
        series = history.looks().series
    assert series['vllm:num_requests_running{engine="0"}'] == [0, None]
    assert series['vllm:generation_tokens_total{engine="0"}'] == [0, 0]


async def test_a_series_that_comes_later_was_null_before(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        del frontend.core.stats["num_degradations"]
        await frontend.state.history.look()
        frontend.core.stats["num_degradations"] = 1
        await frontend.state.history.look()
        series = frontend.state.history.looks().series
    assert series['pyllm:degradations_total{engine="0",reason="device_memory"}'] == [None, 1]


async def test_no_more_than_ten_minutes_are_kept(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        clock, state = Clock(), frontend.state
        history = MetricsHistory(state.metrics, state.client, state.shared, clock)
        for number in range(MAX_LOOKS + 2):
            clock.now += 2.0
            state.metrics.generation_tokens = number
            await history.look()
    looks = history.looks()
    assert (len(looks.ages), looks.ages[0], looks.ages[-1]) == (MAX_LOOKS, 2.0 * (MAX_LOOKS - 1), 0.0)
    assert looks.series['vllm:generation_tokens_total{engine="0"}'] == [*range(2, MAX_LOOKS + 2)]


def test_the_history_has_what_the_page_makes_charts_and_events_of() -> None:
    script = (STATIC / "engine" / "engine_data.js").read_text()
    histograms = set(re.findall(r'^  \w+: "(vllm:\w+)",$', script, re.MULTILINE))
    names = set(re.findall(r'"((?:vllm|pyllm):\w+)"', script)) - histograms - {"vllm:num_requests_waiting_by_reason"}
    assert len(histograms) == 4
    assert names | {f"{name}_bucket" for name in histograms} == SERIES
