"""vLLM's keywords of Python: what they become, and what is said of those that have no meaning."""

import logging
from typing import Any

import pytest

from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.flags.keyword_settings import engine_keywords


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_num_seqs": 7, "tenant_weights": {"a": 2}}, {"max_num_seqs": 7, "tenant_weights": {"a": 2}}),
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"max_model_len": "8k"}, {"max_model_len": 8000}),
        ({"max_model_len": 512}, {"max_model_len": 512}),
        ({"model_impl": "vllm"}, {"model_impl": "native"}),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, {"num_speculative_tokens": 3}),
        ({"compilation_config": 0}, {"enforce_eager": True}),
        ({"swap_space": 2, "tensor_parallel_size": 1}, {"kv_offloading_size": 2.0, "tensor_parallel_size": 1}),
        ({"trust_remote_code": True, "task": "generate"}, {}),
        ({"load_format": "safetensors"}, {"load_format": "auto"}),
        ({"load_format": "dummy"}, {"load_format": "dummy"}),
        ({"nnodes": 1, "fully_sharded_loras": False, "cpu_offload_gb": 0, "lora_dtype": "auto"}, {}),
        ({"enable_lora": True, "lora_modules": ["a=/b"]}, {"enable_lora": True, "lora_modules": ["a=/b"]}),
        ({"limit_mm_per_prompt": {"image": 0}, "tokenizer_mode": "auto", "enable_chunked_prefill": True}, {}),
        ({"enable_return_routed_experts": False, "allowed_local_media_path": "", "enable_log_requests": False}, {}),
        ({"seed": None, "quantization": None, "disable_log_stats": True}, {}),
    ],
)
def test_what_they_become(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert engine_keywords(options) == expected
    assert engine_config(engine_keywords(options)) == engine_config(expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nnodes": 2}, "--distributed-executor-backend ray"),
        ({"lora_extra_vocab_size": 256}, "merge the adapter"),
        ({"fully_sharded_loras": True}, "each rank has its part of an adapter"),
        ({"lora_dtype": "float16"}, "adapters have the model's dtype: use auto"),
        ({"speculative_config": {"model": "small"}}, "use ngram"),
        ({"skip_tokenizer_init": True}, "without a tokenizer"),
        ({"max_model_len": "many"}, "max-model-len"),
        ({"port": 8000}, "pyllm serve"),
        ({"enable_prompt_embeds": True}, "has no meaning here"),
        (
            {"skip_tokenizer_init": True, "tokenizer_mode": "mistral", "port": 8000},
            "port: .*; --skip-tokenizer-init: .*; --tokenizer-mode",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_to_use(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        engine_keywords(options)


def test_what_is_always_so_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine_keywords({"prefix_caching_hash_algo": "sha256"})
    assert [record.getMessage() for record in caplog.records] == [
        "--prefix-caching-hash-algo: BLAKE3 takes the place of sha256"
    ]


def test_a_name_that_nobody_knows_is_left_to_the_configuration() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        engine_config(engine_keywords({"max_num_seq": 3}))
