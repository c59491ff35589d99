"""Each kind of RoPE against transformers' own functions, and contexts that choose between two of them."""

from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pyllm.errors import ConfigError
from pyllm.families import llama, phi3
from pyllm.families.config import Config
from pyllm.families.rope import at_context, longest_context, read_rope
from pyllm.families.spec import ModelSpec, RopeSpec

HEAD = 32
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
FACTORS = {
    "short_factor": [1.0 + index / 10 for index in range(HEAD // 2)],
    "long_factor": [2.0 + index for index in range(HEAD // 2)],
}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {"factor": 4.0}),
    ("dynamic", {"factor": 4.0}),
    ("llama3", LLAMA3),
    ("llama3", LLAMA3 | {"high_freq_factor": 1.0}),
    ("llama3", LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}),
    ("llama3", {name: value for name, value in LLAMA3.items() if name != "original_max_position_embeddings"}),
    ("yarn", {"factor": 4.0}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 512}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16.0, "truncate": False}),
    ("yarn", {"factor": 16.0, "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 0.5}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.3}),
    ("longrope", FACTORS | {"factor": 3.0}),
    ("longrope", FACTORS | {"original_max_position_embeddings": 512}),
    ("longrope", FACTORS | {"original_max_position_embeddings": 512, "factor": 3.0, "attention_factor": 1.1}),
]


def fields(kind: str, theta: float, parameters: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": theta} | parameters
    sizes = {"hidden_size": 4 * HEAD, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 10}
    return sizes | {"max_position_embeddings": 2048, "rope_parameters": rope, "intermediate_size": 8}


def rope_of(spec: ModelSpec, max_model_len: int) -> RopeSpec:
    return at_context(spec, max_model_len).ropes[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("length", [100, 2048, 8192])
@pytest.mark.parametrize(("kind", "parameters"), KINDS)
def test_frequencies_are_those_of_transformers(
    kind: str, parameters: dict[str, Any], length: int, theta: float
) -> None:
    config = fields(kind, theta, parameters)
    expected, attention_factor = ROPE_INIT_FUNCTIONS[kind](LlamaConfig(**config), torch.device("cpu"), seq_len=length)
    spec = llama.read(Config(config | {"architectures": ["LlamaForCausalLM"]}))
    rope = rope_of(spec, length)
    torch.testing.assert_close(torch.tensor(rope.inverse_frequencies), expected, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(attention_factor)
    assert (rope.rotary_size, rope.longer) == (HEAD, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [100, 8192])
@pytest.mark.parametrize(("beside", "within"), [(64, 128), (128, 64), (64, None), (None, None)])
def test_the_original_context_of_phi3_stands_beside_its_parameters(
    beside: int | None, within: int | None, length: int
) -> None:
    config = fields("longrope", 1e4, FACTORS | ({} if within is None else {"original_max_position_embeddings": within}))
    config |= {"original_max_position_embeddings": beside} if beside else {"max_position_embeddings": 16384}
    theirs = Phi3Config(**msgspec.json.decode(msgspec.json.encode(config)), pad_token_id=0)
    expected, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, torch.device("cpu"), seq_len=length)
    rope = rope_of(phi3.read(Config(config | {"architectures": ["Phi3ForCausalLM"]})), length)
    torch.testing.assert_close(torch.tensor(rope.inverse_frequencies), expected, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(attention_factor)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "parameters"), [("llama3", LLAMA3), ("yarn", {"factor": 4.0})])
def test_an_original_context_beside_the_parameters_wins(kind: str, parameters: dict[str, Any]) -> None:
    within = parameters | {"original_max_position_embeddings": 1024}
    config = fields(kind, 1e4, within) | {"original_max_position_embeddings": 128}
    theirs = LlamaConfig(**msgspec.json.decode(msgspec.json.encode(config)))
    expected, _ = ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    rope = rope_of(llama.read(Config(config | {"architectures": ["LlamaForCausalLM"]})), 100)
    torch.testing.assert_close(torch.tensor(rope.inverse_frequencies), expected, rtol=1e-6, atol=0)


def test_without_parameters_the_rotation_is_the_plain_one() -> None:
    rope = read_rope(Config({"max_position_embeddings": 64}), HEAD)
    expected = 1.0 / 1e4 ** (torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
    assert torch.equal(torch.tensor(rope.inverse_frequencies), expected)


def test_a_part_of_a_head_may_rotate() -> None:
    rope = read_rope(Config({"max_position_embeddings": 64, "partial_rotary_factor": 0.5}), HEAD)
    assert (rope.rotary_size, len(rope.inverse_frequencies)) == (HEAD // 2, HEAD // 4)
    assert rope == read_rope(Config({"max_position_embeddings": 64}), HEAD // 2)


def test_older_files_and_layers_have_their_own_places() -> None:
    older = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5, "max_position_embeddings": 64}
    newer = {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        "max_position_embeddings": 64,
    }
    assert read_rope(Config(older), HEAD) == read_rope(Config(newer), HEAD)
    by_layer = {"rope_parameters": {"full_attention": newer["rope_parameters"]}, "max_position_embeddings": 64}
    assert read_rope(Config(by_layer), HEAD, layer_type="full_attention") == read_rope(Config(newer), HEAD)


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({}, 100),
        ({"rope_type": "linear", "factor": 2.0}, 200),
        ({"rope_type": "dynamic", "factor": 2.5}, 250),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}, 200),
        ({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 50}, 100),
        ({"rope_type": "longrope"}, 100),
    ],
)
def test_the_context_is_stretched_as_the_rotation_is(rope: dict[str, Any], context: int) -> None:
    assert longest_context(Config({"max_position_embeddings": 100, "rope_scaling": rope})) == context


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "twisted"}, "rope_type 'twisted' is not supported, only default, dynamic,"),
        ({"rope_type": "linear"}, "rope_parameters has no field factor"),
        ({"rope_type": "linear", "factor": -1.0}, "factor is -1.0; it must be a number above 0"),
        ({"rope_type": "linear", "factor": 1e-60}, "which is not a float32"),
        ({"rope_type": "llama3"} | LLAMA3 | {"high_freq_factor": 0.5}, "high_freq_factor 0.5 must be at least"),
        ({"rope_type": "longrope"} | FACTORS | {"long_factor": [1.0]}, "long_factor is .* a list of 16 numbers"),
        ({"rope_type": "default", "rope_theta": 1.0}, "rope_theta is 1.0; it must be a number above 1"),
        ({"rope_type": "default", "partial_rotary_factor": 0.1}, "RoPE of 3 of a head's 32 dimensions"),
        ({"rope_type": "default", "partial_rotary_factor": 2.0}, "RoPE of 64 of a head's 32 dimensions"),
    ],
)
def test_wrong_parameters_are_named(rope: dict[str, Any], message: str) -> None:
    rope = {"original_max_position_embeddings": 512} | rope
    with pytest.raises(ConfigError, match=message):
        read_rope(Config({"max_position_embeddings": 2048, "rope_parameters": rope}), HEAD)


def test_a_part_of_the_pairs_is_rotated_with_the_frequencies_of_all() -> None:
    parameters = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "factor": 2.0}
    config = Config({"rope_parameters": parameters, "max_position_embeddings": 64})
    rope = read_rope(config, 16)
    assert rope.rotary_size == 16
    assert rope.inverse_frequencies == pytest.approx((0.5, 0.5 * 1e4**-0.125, *[0.0] * 6))
