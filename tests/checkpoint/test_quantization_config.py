"""What a quantization_config says, and what is refused by its name."""

from typing import Any

import pytest

from pyllm.checkpoint.quantization_config import QuantizationConfig, Scheme, read_quantization_config
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from tests.tiny_quantised import awq, bitnet, compressed_tensors, fp8, gptq, int8, packed


def read(section: Any, name: str = "quantization_config") -> QuantizationConfig | None:
    return read_quantization_config(Config({name: section}))


@pytest.mark.parametrize(
    ("config", "method", "scheme"),
    [
        (awq(128).config, "awq", Scheme(layout="awq", bits=4, block=(1, 128), symmetric=False)),
        (
            gptq(-1, act_order=True).config,
            "gptq",
            Scheme(layout="gptq", bits=4, block=(1, 0), symmetric=True, zero_offset=1, has_group_index=True),
        ),
        (
            gptq(64, 8, symmetric=False, version="gptq_v2").config,
            "gptq",
            Scheme(layout="gptq", bits=8, block=(1, 64), symmetric=False),
        ),
        (packed(128).config, "compressed-tensors", Scheme(layout="packed", bits=4, block=(1, 128), symmetric=True)),
        (packed(-1, 8).config, "compressed-tensors", Scheme(layout="packed", bits=8, block=(1, 0), symmetric=True)),
        (int8().config, "compressed-tensors", Scheme(layout="bytes", bits=8, block=(1, 0), symmetric=True)),
        (int8("tensor").config, "compressed-tensors", Scheme(layout="bytes", bits=8, block=(0, 0), symmetric=True)),
        (
            fp8((128, 64)).config,
            "fp8",
            Scheme(layout="bytes", element="float8", bits=8, block=(128, 64), symmetric=True),
        ),
        (
            fp8((1, 0), "float-quantized").config,
            "compressed-tensors",
            Scheme(layout="bytes", element="float8", bits=8, block=(1, 0), symmetric=True),
        ),
    ],
)
def test_a_method_has_its_scheme(config: dict[str, Any], method: str, scheme: Scheme) -> None:
    found = read(config)
    assert found is not None
    assert (found.method, found.schemes) == (method, (scheme,))


def test_it_is_found_where_files_have_it() -> None:
    assert read_quantization_config(Config({"hidden_size": 8})) is None
    assert read_quantization_config(Config({"quantization_config": None})) is None
    expected = read(awq().config)
    assert expected is not None
    assert read(awq().config, "compression_config") == expected
    assert read_quantization_config(Config({"text_config": {"quantization_config": awq().config}})) == expected


def test_modules_may_have_several_schemes() -> None:
    config = packed(32).config
    second = {"targets": ["re:.*down_proj"], "weights": packed(-1, 8).config["config_groups"]["group_0"]["weights"]}
    cache_only = {"targets": ["re:.*attn"], "weights": None}
    found = read(config | {"config_groups": config["config_groups"] | {"group_1": second, "group_2": cache_only}})
    assert found is not None
    assert [(scheme.bits, scheme.block) for scheme in found.schemes] == [(4, (1, 32)), (8, (1, 0))]
    found = read({"quant_method": "fp8"})
    assert found is not None
    assert [scheme.block for scheme in found.schemes] == [(1, 0), (0, 0)]


def test_a_pattern_that_is_none_is_refused() -> None:
    config = packed(32).config
    with pytest.raises(ConfigError, match=r"ignore: 're:\*mlp' is no pattern"):
        read(config | {"ignore": ["re:*mlp"]})
    with pytest.raises(ConfigError, match="ignore is 'lm_head'; it must be a list of strings"):
        read(config | {"ignore": "lm_head"})


def weights(**changes: Any) -> dict[str, Any]:
    return compressed_tensors("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32} | changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"method 'bitsandbytes'; .* or a GGUF of it"),
        (
            {"quant_method": "hqq"},
            "method 'hqq'; supported are compressed-tensors, awq, gptq, fp8, mxfp4 and bitnet: use the unq",
        ),
        ({}, "has no quant_method"),
        ("awq", "quantization_config is 'awq'; it must be a dictionary"),
        ({"quant_method": 4}, "quant_method is 4; it must be a string"),
        (awq().config | {"version": "gemv"}, "version is 'gemv'; it must be gemm; for others, use the unquantised"),
        (awq().config | {"backend": "llm-awq"}, "backend is 'llm-awq'"),
        (awq().config | {"bits": 3}, "bits is 3; it must be 4"),
        (awq().config | {"zero_point": False}, "zero_point = False is not supported"),
        (awq().config | {"group_size": 0}, "group_size is 0; it must be -1, or a whole number from 1"),
        (awq().config | {"group_size": -2}, "group_size is -2"),
        (gptq().config | {"bits": 3}, "bits is 3; it must be 4 or 8"),
        (gptq().config | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (gptq().config | {"is_marlin_format": True}, "is_marlin_format = True"),
        (gptq().config | {"dynamic": {"+:.*down": {"bits": 8}}}, "dynamic is not supported"),
        (gptq().config | {"sym": "yes"}, "sym is 'yes'; it must be true or false"),
        (fp8((0, 0)).config | {"fmt": "e5m2"}, "fmt is 'e5m2'; it must be e4m3"),
        (fp8((0, 0)).config | {"weight_block_size": [128]}, r"weight_block_size is \[128\]"),
        (fp8((0, 0)).config | {"weight_block_size": [0, 128]}, "weight_block_size is 0"),
        (bitnet().config | {"quantization_mode": "online"}, "quantization_mode is 'online'; it must be offline"),
        (bitnet().config | {"linear_class": "linear"}, "linear_class is 'linear'"),
        (bitnet().config | {"use_rms_norm": True}, "use_rms_norm = True"),
        (compressed_tensors("marlin-24", {"num_bits": 4}), "in the format 'marlin-24' are not supported"),
        (compressed_tensors("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}), "'nvfp4-pack-quantized'"),
        (weights(num_bits=3), "int weights of 3 bits, strategy 'group'"),
        (weights(strategy="tensor"), "strategy 'tensor', in the format 'pack-quantized' are not supported"),
        (weights(strategy="token"), "strategy is 'token'; it must be tensor, channel"),
        (weights(group_size=None), "strategy is 'group'"),
        (weights() | {"config_groups": {}}, "has no config_groups with weights"),
        (weights() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is not supported"),
        (weights() | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(config)
