"""The command that a missing package's sentence names."""

import tomllib
from pathlib import Path

import pytest

from pyllm.machine.extras import missing_extra

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "package"), [("gpu", "nvidia-ml-py"), ("otel", "opentelemetry-sdk"), ("ray", "ray")])
def test_the_command_installs_the_package(name: str, package: str) -> None:
    sentence = missing_extra(name, package)
    assert sentence == f"{package} is not installed: pip install 'pyllm[{name}]'"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith(package) for requirement in extras[name])
