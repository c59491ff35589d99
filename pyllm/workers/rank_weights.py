"""The weights of one rank: the model that computes, and another version that is loaded beside it or in its place.

Knows no step and no KV cache.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from pyllm.checkpoint.types import Checkpoint, check_unchanged
from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import ConfigError, ProtocolError
from pyllm.families.stage_layout import PipelineStage
from pyllm.machine.memory import host_memory
from pyllm.supervision.process_memory import return_freed_memory
from pyllm.workers.adapters.rank_adapters import RankAdapters
from pyllm.workers.causal_model import CausalModel
from pyllm.workers.decoder import Decoder
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.packed_cache import open_packed_cache
from pyllm.workers.loaders.progress import ProgressReader
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.loaders.turns import TurnLoader
from pyllm.workers.loaders.weights import WeightReader


class _NextWeights(NamedTuple):
    """A version of the weights that is being loaded."""

    checkpoint: Checkpoint
    model: CausalModel
    adapters: RankAdapters | None
    loader: TurnLoader


class RankWeights:
    """The share of `checkpoint` that one rank of a stage has: call `load` first, in the context of the device.

    `adapters` are those of the model that computes; None for an engine without.
    """

    def __init__(
        self,
        engine: EngineConfig,
        checkpoint: Checkpoint,
        rank: int,
        *,
        stage: PipelineStage,
        placement: WeightPlacement,
        adapters: RankAdapters | None,
    ) -> None:
        self._engine = engine
        self._rank = rank
        self._stage = stage
        self._placement = placement
        self._spec = checkpoint.spec
        self.checkpoint = self._own_part(checkpoint)
        self.adapters = adapters
        self._model: CausalModel | None = None
        self._next: _NextWeights | None = None

    @property
    def has_model(self) -> bool:
        """Whether there are weights to compute with."""
        return self._model is not None

    @property
    def model(self) -> CausalModel:
        """The model that computes. Raises ProtocolError without one."""
        if self._model is None:
            raise ProtocolError("there are no weights: load or wake_weights comes before")
        return self._model

    def load(self, advance: Callable[[float], None]) -> None:
        """Load the first version; `advance` is called with the fraction that is loaded.

        Raises:
            ConfigError: a file has shrunk, or cannot be cut for this rank.
        """
        cache = open_packed_cache(self._engine, self.checkpoint, self._rank)
        table = TensorTable(self.checkpoint)
        model = self._causal_model(replace(self._placement, cache=cache, adapters=self.adapters), table)
        model.load(ProgressReader(weight_reader(self.checkpoint, table), self.checkpoint, advance))
        self._model = model
        if cache is not None:
            cache.finish()

    def num_bytes(self) -> int:
        """Bytes of the weights that compute."""
        if self._model is None:
            return 0
        return sum(packed.nbytes for packed in self._model.matrices()) + self._model.embedding_bytes

    def room(self) -> tuple[int, int]:
        """Bytes that this rank's share of the weights takes, and bytes that are available for another version of it."""
        if self._placement.device.type != "cuda":
            return self.num_bytes(), min((memory.available for memory in host_memory()), default=0)
        from pyllm.workers.devices.torch_device import available_bytes

        return self.num_bytes(), available_bytes(self._placement.device)

    def begin(self, checkpoint: bytes) -> None:
        """Begin to load another version, described by a `Checkpoint` of the same spec; `advance` reads it.

        Raises:
            ConfigError: the files have changed since they were described, or cannot be read.
        """
        self.forget_next()
        described = msgspec.msgpack.decode(checkpoint, type=Checkpoint)
        try:
            check_unchanged(described)
            own = self._own_part(described)
            table = TensorTable(own)
        except OSError as error:
            raise ConfigError(f"the weights cannot be read: {error}") from None
        adapters = None if self.adapters is None else self.adapters.for_model()
        model = self._causal_model(replace(self._placement, cache=None, adapters=adapters), table)

        def load(reader: WeightReader) -> None:
            with self._placement.device.computing():
                model.load(reader)

        self._next = _NextWeights(own, model, adapters, TurnLoader(load, weight_reader(own, table)))

    def advance(self, seconds: float) -> bool:
        """Go on loading the next version for some seconds; True if all is loaded.

        Raises:
            ConfigError: a file does not fit, or has shrunk.
        """
        return self._loading().loader.advance(seconds)

    def switch(self) -> None:
        """Compute with the next version from now on."""
        new = self._loading()
        if not new.loader.is_done:
            raise ProtocolError("the weights are not loaded yet")
        new.loader.close()
        self._next = None
        self._model, self.checkpoint = new.model, new.checkpoint
        if new.adapters is not None:
            self.adapters = new.adapters
            new.adapters.assign_again()

    def forget_next(self) -> None:
        """Forget a version that was loaded, or begun, and not switched to."""
        if self._next is not None:
            self._next.loader.close()
            self._next = None
            free_unused()

    def drop(self) -> None:
        """Free the weights that compute."""
        if self._model is not None:
            self._model = None
            free_unused()

    def reload(self) -> None:
        """Load what `drop` has freed again. Raises ConfigError: the files have changed, or cannot be read."""
        self.begin(msgspec.msgpack.encode(self.checkpoint))
        self.advance(float("inf"))
        self.switch()

    def _loading(self) -> _NextWeights:
        if self._next is None:
            raise ProtocolError("there are no other weights: begin_weights comes before")
        return self._next

    def _own_part(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with the tensors of this rank's stage; others are neither read nor counted as progress."""
        if self._engine.parallel.pipeline_parallel_size == 1:
            return checkpoint
        own = tuple(
            entry for entry in checkpoint.tensors if self._stage.has(entry.name, self._spec.tie_word_embeddings)
        )
        return msgspec.structs.replace(checkpoint, tensors=own)

    def _causal_model(self, placement: WeightPlacement, table: TensorTable) -> CausalModel:
        if self._spec.transformers is None:
            return Decoder(self._spec, placement, self._stage)
        from pyllm.workers.transformers_backend.model import TransformersModel  # Others need not import it.

        max_model_len = self._engine.model.max_model_len
        assert max_model_len is not None, "the configuration was not resolved"
        return TransformersModel(self._spec, placement, table.unmapped(), max_model_len)


def free_unused() -> None:
    """Free what was dropped: a model has reference cycles, and the process has frozen its objects."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return_freed_memory()
