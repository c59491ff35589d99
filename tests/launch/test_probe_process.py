import json
from pathlib import Path

import msgspec
import pytest
from transformers import LlamaConfig

from pyllm.errors import ConfigError
from pyllm.families.transformers_probe import Probed, ProbeRequest
from pyllm.launch.probe_process import ask_process, probe_model
from tests.workers.transformers_backend.tiny_configs import tiny_config

LLAMA = tiny_config(LlamaConfig).to_dict() | {"architectures": ["LlamaForCausalLM"]}


def request(**changes: object) -> ProbeRequest:
    return ProbeRequest(config=json.dumps({**LLAMA, **changes}), tensors=dict.fromkeys("abcd", (1,)))


@pytest.fixture(scope="module")
def probed() -> Probed:
    return ask_process(msgspec.json.encode(request()))


def test_a_process_answers(probed: Probed) -> None:
    assert probed.spec.transformers is not None
    assert len(probed.spec.layers) == 4


@pytest.mark.full  # A server that ends for such a refusal is in tests/e2e/test_transformers.py.
def test_a_refusal_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has no causal language model NothingForCausalLM of type llama"):
        probe_model(request(architectures=["NothingForCausalLM"]))


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_the_model_is_refused_with_its_name(missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"{missing} is not installed: pip install 'pyllm\[transformers\]'"):
        probe_model(request(), ask_process, lambda package: package != missing)


@pytest.mark.full
def test_a_process_that_fails_says_how() -> None:
    with pytest.raises(ConfigError, match=r"the process that asks transformers .* failed with 1: "):
        ask_process(b"{}")


def test_an_answer_is_kept_for_the_same_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: Probed
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def ask(content: bytes) -> Probed:
        asked.append(content)
        return probed

    assert probe_model(request(), ask) == probe_model(request(), ask) == probed
    assert len(asked) == 1
    probe_model(request(hidden_size=32), ask)
    assert len(asked) == 2
    for kept in (tmp_path / "pyllm").iterdir():
        kept.write_bytes(b"damaged")
    assert probe_model(request(), ask) == probed
    assert len(asked) == 3


def test_without_a_cache_folder_the_answer_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    asked = []
    assert probe_model(request(), lambda content: asked.append(content) or probed) == probed
    assert len(asked) == 1
    assert "what transformers makes of the model is not kept" in caplog.text
