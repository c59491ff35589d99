"""Names of blocks: those that a scheduler with the model's settings gives."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm._rust import Scheduler
from pyllm.client import RequestHasher
from pyllm.errors import RequestError
from pyllm.wire.messages import ModelInfo
from tests.core.raw_engine import MODEL

NAMESPACE = bytes(range(32))


def model(**fields: object) -> ModelInfo:
    return msgspec.structs.replace(MODEL, cache_namespace=NAMESPACE.hex(), **fields)


@given(
    prompt=st.lists(st.integers(0, 999), min_size=1, max_size=40),
    prefix_hash=st.sampled_from(["blake3", "sha256_cbor"]),
    seed=st.text(max_size=3),
    keys=st.fixed_dictionaries({}, optional=dict.fromkeys(("tenant", "cache_salt", "adapter"), st.text(max_size=3))),
)
def test_a_prompts_blocks_have_the_names_that_the_scheduler_gives_them(
    prompt: list[int], prefix_hash: str, seed: str, keys: dict[str, str]
) -> None:
    scheduler = Scheduler(
        block_size=4,
        num_blocks=32,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=64,
        vocab_size=1000,
        prefix_hash=prefix_hash,
        prefix_hash_seed=seed,
        cache_namespace=NAMESPACE.hex(),
        max_loras=1,
    )
    number = 1 if keys.get("adapter") else 0
    # The last token is computed in any case, so its block is not one to look for.
    scheduler.add(0, 1, array("i", [*prompt, 0]).tobytes(), seed=0, max_tokens=1, adapter_number=number, **keys)
    hasher = RequestHasher(model(prefix_hash=prefix_hash, prefix_hash_seed=seed))
    assert hasher.hashes(prompt, **keys) == scheduler.known_prefix(0, 1)[1]
    assert hasher.hashes(array("i", prompt).tobytes(), **keys) == hasher.hashes(prompt, **keys)


def test_each_block_has_a_key_of_each_group_and_rank() -> None:
    hasher = RequestHasher(model(kv_windows=(None, 8), tensor_parallel_size=2))
    (name,) = hasher.hashes([1, 2, 3, 4])
    keys = hasher.keys(name)
    assert len(set(keys)) == 4
    assert all(key.startswith(NAMESPACE + name) for key in keys)


def test_what_is_no_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="not a sequence of 32-bit token ids"):
        RequestHasher(model()).hashes(["one"])  # type: ignore[list-item]  # That is what is wrong.
