"""Options win over what a model's files say of templates and sampling."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.frontend.text.templates import no_chat_template
from pyllm.launch.model_overrides import chat_template_notice, with_overrides
from pyllm.launch.resolve import resolve_config
from tests.tiny_model import write_tiny_model

OWN = SamplingDefaults(temperature=0.6, top_k=20)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path_factory.mktemp("tiny")))
    return msgspec.structs.replace(checkpoint, sampling=OWN)


def changed(checkpoint: Checkpoint, **options: Any) -> Checkpoint:
    return with_overrides(checkpoint, engine_config(options).model)


def test_without_options_everything_is_the_models_own(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert changed(checkpoint) == checkpoint
    assert "temperature 0.6, top_k 20" in caplog.text


def test_sampling_defaults_are_replaced_as_in_vllm(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert changed(checkpoint, generation_config="vllm").sampling == SamplingDefaults()
    override = '{"temperature": 1.5, "max_new_tokens": 9}'
    both = changed(checkpoint, override_generation_config=override).sampling
    assert both == SamplingDefaults(temperature=1.5, top_k=20, max_tokens=9)
    alone = changed(checkpoint, generation_config="vllm", override_generation_config={"top_p": 0.5}).sampling
    assert alone == SamplingDefaults(top_p=0.5)
    (tmp_path / "generation_config.json").write_text(json.dumps({"min_p": 0.25}))
    for path in (tmp_path, tmp_path / "generation_config.json"):
        assert changed(checkpoint, generation_config=str(path)).sampling == SamplingDefaults(min_p=0.25)


def test_ends_of_another_generation_config_replace_those_of_the_models_own(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    tokenizer = checkpoint.tokenizer.with_ends([69], checkpoint.spec)
    checkpoint = msgspec.structs.replace(checkpoint, tokenizer=tokenizer)
    assert changed(checkpoint, generation_config="vllm").tokenizer.eos_token_ids == (69, 257)
    file = tmp_path / "generation_config.json"
    for content, ends in (({}, (69, 257)), ({"eos_token_id": [7, 8]}, (7, 8, 257)), ({"eos_token_id": None}, (257,))):
        file.write_text(json.dumps(content))
        assert changed(checkpoint, generation_config=str(tmp_path)).tokenizer.eos_token_ids == ends


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"generation_config": "absent"}, r"cannot read absent"),
        ({"override_generation_config": {"temprature": 1}}, "temprature unknown, only temperature, top_p"),
        ({"override_generation_config": {"top_k": 0.5}}, "override_generation_config: top_k"),
        (
            {"override_generation_config": {"top_p": 2}},
            "top_p must be above 0 and at most 1, got 2.*--generation",
        ),
        ({"override_generation_config": {"max_new_tokens": 0}}, "max_tokens must be at least 1, got 0"),
        ({"override_generation_config": "[1]"}, "must be a JSON object"),
        ({"override_generation_config": '{"top_p": "much"}'}, "override_generation_config.*got str"),
        ({"chat_template": "absent.jinja"}, r"cannot read the chat template absent\.jinja"),
    ],
)
def test_what_cannot_be_used_is_refused(checkpoint: Checkpoint, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        changed(checkpoint, **options)


def test_a_chat_template_is_a_file_or_the_text_itself(checkpoint: Checkpoint, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    for given in (template, str(tmp_path / "chat.jinja")):
        assert changed(checkpoint, chat_template=given).tokenizer.chat_template == template


def test_they_are_resolved_with_the_rest(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    options = {"model": folder, "chat_template": "{{ 1 }}", "override_generation_config": {"top_k": 3}}
    _, checkpoint = resolve_config(engine_config(options))
    assert (checkpoint.tokenizer.chat_template, checkpoint.sampling.top_k) == ("{{ 1 }}", 3)


def test_a_model_that_cannot_chat_is_told_of_unless_it_only_embeds(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "tiny"))
    assert chat_template_notice(checkpoint) == ""
    tokenizer = msgspec.structs.replace(checkpoint.tokenizer, chat_template=None)
    base = msgspec.structs.replace(checkpoint, tokenizer=tokenizer)
    assert chat_template_notice(base) == no_chat_template("tiny")
    embedding = msgspec.structs.replace(base.embedding, is_only_use=True)
    assert chat_template_notice(msgspec.structs.replace(base, embedding=embedding)) == ""
