"""The arguments of the application, as far as they are checked before anything starts."""

import importlib
from pathlib import Path

import pytest
import yaml

from pyllm.errors import ConfigError
from pyllm.flags.keyword_settings import server_settings
from pyllm.ray import app

CONFIG_FILE = Path(__file__).parents[2] / "deploy/ray/serve.yaml"


def test_settings_are_those_of_the_servers_flags() -> None:
    engine, server = server_settings(
        {"model": "m.gguf", "max-model-len": "4k", "max_num_seqs": 3, "tool_call_parser": "hermes"}
    )
    assert (engine.model.model, engine.model.max_model_len, engine.scheduler.max_num_seqs) == ("m.gguf", 4000, 3)
    assert server.tool_call_parser == "hermes"


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"modle": "x"}, "modle"), ({"max_num_seqs": -1}, "max_num_seqs"), ({"dtype": "float7"}, "dtype")],
)
def test_wrong_settings_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        server_settings(settings)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'pyllm\[ray\]'"):
        app({})


@pytest.mark.filterwarnings("ignore")
def test_what_proxies_decide_and_what_is_no_options_is_refused() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="port is of Ray Serve's proxies"):
        app({"port": 1234})
    with pytest.raises(ConfigError, match="cores is 3: expected options of a deployment"):
        app({"cores": 3})


@pytest.mark.filterwarnings("ignore")
def test_the_config_file_is_one_of_ray_serves_for_this_application() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    config = schema.ServeDeploySchema.model_validate(yaml.safe_load(CONFIG_FILE.read_text()))
    (application,) = config.applications
    assert application.import_path == "pyllm.ray:app"
    assert {deployment.name for deployment in application.deployments} == {"Cores", "Api"}
    server_settings(application.args)
    for deployment in application.deployments:
        if deployment.name == "Cores":
            policy = deployment.autoscaling_config["policy"]
            module, _, name = policy["policy_function"].partition(":")
            assert getattr(importlib.import_module(module), name)(**policy["policy_kwargs"])
