"""The arguments of the application, as far as they are checked before anything starts."""

from pathlib import Path

import pytest

from pyllm.errors import ConfigError
from pyllm.flags.keyword_settings import server_settings
from pyllm.ray.application import app

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
