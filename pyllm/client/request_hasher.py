"""The names of a prompt's blocks outside the engine, to find them in a store or in KV events.

Knows no store and no connection.
"""

from pyllm._rust import RequestHasher as Hasher
from pyllm.client.prompt_tokens import Prompt, pack_tokens
from pyllm.kv_transfer import block_key
from pyllm.wire.messages import ModelInfo


class RequestHasher:
    """Names blocks as an engine with this model and version of its weights does, in any process."""

    def __init__(self, model: ModelInfo) -> None:
        self._hasher = Hasher(
            block_size=model.block_size,
            prefix_hash=model.prefix_hash,
            prefix_hash_seed=model.prefix_hash_seed,
            cache_namespace=model.cache_namespace,
        )
        self._namespace = bytes.fromhex(model.cache_namespace)
        self._weights_version = model.weights_version
        self._num_groups = len(model.kv_windows)
        self._num_ranks = model.tensor_parallel_size * model.pipeline_parallel_size

    def hashes(self, prompt: Prompt, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> list[bytes]:
        """The hashes of a prompt's full blocks, in order: 32 bytes each, over all tokens up to the end of the block.

        `adapter` is an `Adapter.key`, as `EngineClient.find_adapter` gives it.

        Raises:
            RequestError: the prompt is not a sequence of token ids.
        """
        packed = pack_tokens(prompt).tobytes()
        return self._hasher.hashes(
            packed,
            tenant=tenant,
            cache_salt=cache_salt,
            adapter=adapter,
            weights_version=self._weights_version,
        )

    def keys(self, block_hash: bytes) -> list[bytes]:
        """The keys of one of these blocks in a `KVStore`: for each group of layers, one for each rank."""
        return [
            block_key(self._namespace, block_hash, group, rank)
            for group in range(self._num_groups)
            for rank in range(self._num_ranks)
        ]
