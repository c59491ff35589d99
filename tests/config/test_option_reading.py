import pytest

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import config_part, engine_config, option_names
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError


def test_flat_options_find_their_part() -> None:
    config = engine_config({"max_num_seqs": 4, "kv_cache_memory_bytes": "64MiB", "dtype": "float32"})
    assert config.scheduler.max_num_seqs == 4
    assert config.cache.kv_cache_memory_bytes == 64 << 20
    assert config.model.dtype == "float32"
    assert config.parallel == EngineConfig().parallel


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        ("512MiB", 512 << 20),
        ("2", 2 << 30),
        ("0.5", 1 << 29),
        (2, 2 << 30),
        (1.5, 3 << 29),
        (0, 0),
        ("64m", 64_000_000),
    ],
)
def test_a_host_pool_without_a_unit_is_in_gib(size: object, num_bytes: int) -> None:
    assert engine_config({"kv_offloading_size": size}).cache.kv_offloading_size == num_bytes


@pytest.mark.parametrize(
    ("weights", "read"),
    [
        ("team-a=3,team-b=1", {"team-a": 3, "team-b": 1}),
        (" team-a = 3 ", {"team-a": 3}),
        ("a=b=2", {"a=b": 2}),
        ("", {}),
        ({"team-a": 3}, {"team-a": 3}),
        ({"": 5}, {"": 5}),
    ],
)
def test_weights_of_tenants_are_a_text_or_a_dict(weights: object, read: dict[str, int]) -> None:
    assert engine_config({"tenant_weights": weights}).scheduler.tenant_weights == read


@pytest.mark.parametrize("text", ["team-a", "team-a=", "=3", "team-a=x", "team-a=-1", "a=1,,b=2", "a=1,a=2", "a=1.5"])
def test_weights_that_do_not_read_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="team-a=3,team-b=1"):
        engine_config({"tenant_weights": text})


def test_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        engine_config({"max_num_seq": 4})


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": -1},
        {"dtype": "int4"},
        {"gpu_memory_utilization": 1.5},
        {"enable_prefix_caching": "perhaps"},
        {"max_model_len": 1},
        {"max_logprobs": -2},
        {"max_logprobs": 2**30 + 1},
        {"tensor_parallel_size": -1},
        {"kv_offloading_size": -1},
        {"kv_offloading_size": True},
        {"kv_offloading_size": float("inf")},
        {"max_pinned_blocks": -1},
        {"enable_kv_cache_events": 2},
        {"long_prefill_token_threshold": -1},
        {"inter_token_target": -0.1},
        {"inter_token_target": float("inf")},
        {"scheduling_policy": 1},
        {"tenant_weights": {"acme": 0}},
        {"tenant_weights": {"acme": 1_000_001}},
        {"tenant_weights": {"acme": "much"}},
        {"tenant_weights": ["acme"]},
        {"watermark": 1.0},
        {"watermark": float("nan")},
        {"expected_growth": 17},
        {"expected_growth": float("nan")},
    ],
)
def test_values_out_of_range_name_the_option(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options)) + "|enum"):
        engine_config(options)


def test_server_options_are_checked_too() -> None:
    assert config_part(ServerConfig, {"port": 0}).port == 0
    with pytest.raises(ConfigError, match="port"):
        config_part(ServerConfig, {"port": 70000})


def test_option_names_are_unique() -> None:
    names = option_names()
    assert len(names) == len(set(names))


def test_none_stands_for_the_default_of_a_known_option() -> None:
    assert engine_config({"kv_offloading_size": None, "model": None}) == EngineConfig()
    with pytest.raises(ConfigError, match="unknown option 'max_num_seq'"):
        engine_config({"max_num_seq": None})


EXTRA = '"kv_connector_extra_config": {"url": "redis://:geheim@host"}'


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('{"kv_connector": "X", "kv_rol": "kv_both", ' + EXTRA + "}", "kv_rol`"),
        ('{"kv_connector": 5, ' + EXTRA + "}", "at `$.kv_connector`"),
        ('{"kv_connector": "X", ' + EXTRA, "truncated"),
        ("redis://:geheim@host", "malformed"),
        ({"kv_connector_extra_config": {"url": "redis://:geheim@host"}}, "missing required field kv_connector"),
        ({"kv_connector": {"password": "geheim"}}, "kv_transfer_config.kv_connector: expected str"),
    ],
)
def test_what_is_wrong_with_a_connectors_settings_is_told_without_their_values(value: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config({"kv_transfer_config": value})
    assert told in str(caught.value)
    assert "kv_transfer_config" in str(caught.value)
    assert "geheim" not in str(caught.value)
