"""A real Prometheus scrapes a real server: every query of dashboard, alerts and autoscaler finds its series."""

from collections.abc import Iterator

import pytest

from tests.e2e.prometheus import Prometheus
from tests.e2e.server import Server, until
from tests.monitoring import RULES, adapter_queries, dashboard_queries, selectors

pytestmark = pytest.mark.services
LATE = ("process_cpu_seconds_total", "kv_store_capacity_bytes")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Server("--kv-cache-dir", str(folder / "blocks")) as server:
        assert server.complete("The capital of France is", max_tokens=8).status_code == 200
        with Prometheus(folder, server.address.removeprefix("http://")) as started:
            # Two scrapes make a rate, of the processes' samples and the store's figures as well, which come later.
            scrapes = [f"count_over_time(pyllm:{name}[1m]) >= 2" for name in LATE]
            until(lambda: all(map(started.query, scrapes)), "Prometheus to scrape the server twice")
            yield started
        assert started.log == ""


def test_the_server_is_up_and_ready(prometheus: Prometheus) -> None:
    for query in ("up{job='pyllm'}", "pyllm:ready"):
        (series,) = prometheus.query(query)
        assert series["value"][1] == "1"


def test_every_series_that_is_selected_exists(prometheus: Prometheus) -> None:
    assert [selector for selector in sorted(selectors()) if not prometheus.query(selector)] == []
    assert prometheus.query("pyllm:of_no_server") == []


def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    assert [(title, query) for title, query in dashboard_queries() if not prometheus.query(query)] == []


def test_the_autoscaler_gets_one_figure_a_server(prometheus: Prometheus) -> None:
    figures = {name: len(prometheus.query(query)) for name, query in adapter_queries()}
    assert figures == {"vllm_num_requests_waiting": 1, "vllm_kv_cache_usage_perc": 1}


def test_prometheus_evaluates_every_alert_and_a_server_that_is_well_raises_none(prometheus: Prometheus) -> None:
    names = [rule["alert"] for rule in RULES]
    until(lambda: prometheus.alerts() == dict.fromkeys(names, "ok"), "the rules to be evaluated")
    assert prometheus.query("ALERTS") == []
