"""The application's options and its config file, as Ray Serve reads them."""

import importlib
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from pyllm.errors import ConfigError
from pyllm.flags.keyword_settings import server_settings
from pyllm.ray.application import app

pytestmark = pytest.mark.filterwarnings("ignore")
CONFIG_FILE = Path(__file__).parents[2] / "deploy/ray/serve.yaml"


def test_what_proxies_decide_and_what_is_no_options_is_refused() -> None:
    with pytest.raises(ConfigError, match="port is of Ray Serve's proxies"):
        app({"port": 1234})
    with pytest.raises(ConfigError, match="cores is 3: expected options of a deployment"):
        app({"cores": 3})


def test_the_config_file_is_one_of_ray_serves_for_this_application() -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG_FILE.read_text()))
    (application,) = config.applications
    assert application.import_path == "pyllm.ray:app"
    assert {deployment.name for deployment in application.deployments} == {"Cores", "Api"}
    server_settings(application.args)
    for deployment in application.deployments:
        if deployment.name == "Cores":
            policy = deployment.autoscaling_config["policy"]
            module, _, name = policy["policy_function"].partition(":")
            assert getattr(importlib.import_module(module), name)(**policy["policy_kwargs"])
