"""Sparse attention is refused by name where it is not built, before any process starts."""

import pytest
from msgspec.structs import replace

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec, TransformersSpec
from pyllm.workers.sparse_attention.sparse_limits import check_sparse_attention
from tests.tiny_model import write_tiny_model

QUEST = {"sparse_attention": "quest"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_checkpoint(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", layers=4)).spec


@pytest.mark.parametrize(
    ("options", "device", "text"),
    [
        ({"sparse_attention_top_k": 9}, "cpu", "needs sparse_attention: set it, too"),
        ({"sparse_attention": "streaming"}, "cpu", "there are quest, mean"),
        (QUEST, "cuda", "quest works on CPUs only, not on cuda"),
        (QUEST | {"attention_backend": "triton"}, "cpu", "does not work with attention_backend triton"),
        (QUEST | {"kernel_backend": "triton"}, "cpu", "does not work with kernel_backend triton"),
        (QUEST | {"sparse_attention_dense_layers": 4}, "cpu", "of 4 layers the first 4 read all blocks"),
    ],
)
def test_what_it_does_not_work_with_is_named(
    spec: ModelSpec, options: dict[str, object], device: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_sparse_attention(engine_config(options), spec, device)


def test_a_model_of_windows_alone_has_nothing_to_choose(spec: ModelSpec) -> None:
    windowed = replace(spec.layers[0], attention=replace(spec.layers[0].attention, window=8))
    alone = replace(spec, layers=(*spec.layers[:2], windowed, windowed))
    with pytest.raises(ConfigError, match=r"of 4 layers the first 2 read all blocks .* and the others have a window"):
        check_sparse_attention(engine_config(QUEST), alone, "cpu")
    check_sparse_attention(engine_config(QUEST), replace(spec, layers=(*spec.layers[:3], windowed)), "cpu")


def test_scores_that_fall_with_distance_are_refused(spec: ModelSpec) -> None:
    sloping = replace(spec.layers[3], attention=replace(spec.layers[3].attention, slopes=(0.5, 0.25)))
    with pytest.raises(ConfigError, match="quest is not possible with ALiBi"):
        check_sparse_attention(engine_config(QUEST), replace(spec, layers=(*spec.layers[:3], sloping)), "cpu")


@pytest.mark.parametrize(
    "options",
    [
        {},
        QUEST | {"kv_cache_dir": "kv"},
        {"sparse_attention": "mean", "kernel_backend": "reference"},
        QUEST | {"attention_backend": "sdpa"},
    ],
)
def test_dense_attention_and_our_own_backends_are_let_in(spec: ModelSpec, options: dict[str, object]) -> None:
    check_sparse_attention(engine_config(options), spec, "cpu")


def test_a_model_that_transformers_computes_is_refused(spec: ModelSpec) -> None:
    how = TransformersSpec(
        config="{}",
        version="5",
        base="model",
        first_position=0,
        linears=(),
        embedding="",
        head="",
        tensor_parallel_refusal="",
        num_parameters=1,
        num_torch_parameters=0,
    )
    theirs = replace(spec, transformers=how)
    with pytest.raises(ConfigError, match="quest is not possible where transformers computes the model"):
        check_sparse_attention(engine_config(QUEST), theirs, "cpu")
