"""Alerts, dashboard and autoscaler agree with one another; `promtool` runs the alerts' own cases."""

import itertools
import re
import subprocess

import pytest

from tests.monitoring import ADAPTER, DASHBOARD, DEPLOY, MONITORING, RULES, selectors
from tests.plain_yaml import read_yaml
from tests.services import service_program

FLAG = re.compile(r"--[a-z][a-z-]+")


@pytest.mark.services
@pytest.mark.parametrize(
    "command",
    [["check", "config", "prometheus.yaml"], ["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]],
    ids=" ".join,
)
def test_promtool_agrees(command: list[str]) -> None:
    promtool = service_program("promtool")
    run = subprocess.run([promtool, *command], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "SUCCESS" in run.stdout
    assert "FAILED" not in run.stdout + run.stderr


def test_every_alert_has_a_case_where_it_is_quiet_and_one_where_it_is_not() -> None:
    cases = read_yaml((MONITORING / "alerts_test.yaml").read_text())["tests"]
    assert [case["name"] for case in cases] == [rule["alert"] for rule in RULES]
    for case in cases:
        expected = [(test["alertname"], len(test["exp_alerts"])) for test in case["alert_rule_test"]]
        assert expected == [(case["name"], 0), (case["name"], 1)]


def test_every_alert_says_what_to_do_and_names_flags_that_exist() -> None:
    flags = set(FLAG.findall((DEPLOY.parent / "docs/flags.md").read_text()))
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert "$labels.instance" in rule["annotations"]["summary"]
        assert set(FLAG.findall(rule["annotations"]["description"])) <= flags


def test_panels_of_the_dashboard_fill_rows_and_none_lies_on_another() -> None:
    cells = []
    for panel in DASHBOARD["panels"]:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        cells += itertools.product(range(x, x + w), range(y, y + h))
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_selectors_are_found() -> None:
    assert {"up{job='pyllm'}", "pyllm:ready", 'pyllm:ready{job="pyllm"}'} < selectors()
    assert len(selectors()) > 40


def test_the_autoscaler_scales_what_there_is_by_what_the_adapter_gives() -> None:
    scaler = read_yaml((DEPLOY / "autoscaling/autoscaler.yaml").read_text())["spec"]
    deployment = read_yaml((DEPLOY / "deployment.yaml").read_text())
    target = scaler["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert target["apiVersion"] == deployment["apiVersion"]
    assert deployment["spec"]["replicas"] == scaler["minReplicas"] < scaler["maxReplicas"]
    assert [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]] == [
        rule["name"]["as"] for rule in ADAPTER
    ]
    for rule in ADAPTER:  # Kubernetes has no colons in names of metrics.
        assert f"__name__='{rule['name']['as'].replace('_', ':', 1)}'" in rule["seriesQuery"]


def test_the_autoscaler_takes_the_number_of_servers_over() -> None:
    folder = DEPLOY / "autoscaling"
    kustomization = read_yaml((folder / "kustomization.yaml").read_text())
    (patch,) = kustomization["patches"]
    (operation,) = read_yaml((folder / patch["path"]).read_text())
    assert operation == {"op": "remove", "path": "/spec/replicas"}
    files = {*kustomization["resources"], patch["path"], "kustomization.yaml", "adapter.yaml"}
    assert files == {"..", *(file.name for file in folder.glob("*.yaml"))}


def test_the_pod_monitor_finds_the_servers_under_the_job_of_all_queries() -> None:
    monitor = read_yaml((MONITORING / "pod-monitor.yaml").read_text())["spec"]
    template = read_yaml((DEPLOY / "deployment.yaml").read_text())["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"] == labels
    assert labels[monitor["jobLabel"]] == "pyllm"
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] == container["ports"][0]["name"]
    assert endpoint["authorization"]["credentials"] == container["env"][0]["valueFrom"]["secretKeyRef"]
