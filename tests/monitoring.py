"""What `deploy/monitoring` and `deploy/autoscaling` ask Prometheus: queries, and the series that they select."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.plain_yaml import read_yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
MONITORING = DEPLOY / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = read_yaml((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
ADAPTER: list[dict[str, Any]] = read_yaml((DEPLOY / "autoscaling/adapter.yaml").read_text())["rules"]["custom"]
_SELECTOR = re.compile(r"(?:(?:vllm|pyllm):\w+|\bup\b)(?:\{[^}]*\})?")
# What Grafana and the adapter put in.
_VALUES = {"$job": "pyllm", "$instance": ".*", "$model_name": ".*", "$__rate_interval": "1m"}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Each query with its panel's title."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], _filled(target["expr"])


def adapter_queries() -> Iterator[tuple[str, str]]:
    """Each query with the name that its figure has in Kubernetes."""
    for rule in ADAPTER:
        (series,) = re.findall(r"__name__='([\w:]+)'", rule["seriesQuery"])
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", "job='pyllm'")
        yield rule["name"]["as"], query.replace("<<.GroupBy>>", "instance")


def selectors() -> set[str]:
    """Every selection of series in the rules, the dashboard and its variables."""
    variables = [variable.get("query") for variable in DASHBOARD["templating"]["list"]]
    texts = [rule["expr"] for rule in RULES] + [query for _, query in dashboard_queries()]
    texts += [_filled(query["query"]) for query in variables if isinstance(query, dict)]
    return {selector for text in texts for selector in _SELECTOR.findall(text)}


def _filled(query: str) -> str:
    for name, value in _VALUES.items():
        query = query.replace(name, value)
    return query
