"""The placement of a rank's parameters: their device and dtype, the rank's part of them, and its threads.

Knows no layer.
"""

from dataclasses import dataclass

import pyllm_kernels
from pyllm_kernels import Kernels
from pyllm_kernels.host_copies import fill
from pyllm_kernels.tensors import Array, Tensor, dtype_name

from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import ConfigError
from pyllm.workers.adapters.rank_adapters import RankAdapters
from pyllm.workers.devices.device import Device
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.loaders.packed_cache import PackedCache


@dataclass(frozen=True, slots=True)
class WeightPlacement:
    """The device and dtype of a rank's parameters, its group, and the kernels that its matrices are packed for.

    Packed matrices are looked up in `cache`, if there is one, and added to it. `by_expert`: a rank has some whole
    experts, instead of a part of each. `adapters` keeps room for LoRA adapters of each linear layer, if there are any.
    """

    group: RankGroup
    dtype: str
    device: Device
    kernels: Kernels
    quantization: str = "none"
    cache: PackedCache | None = None
    by_expert: bool = False
    adapters: RankAdapters | None = None

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor for weights."""
        return self.device.empty(shape, self.dtype)

    def placed(self, weights: Array) -> Tensor:
        """Weights of the host on the device; on a CPU they stay where they are.

        A GPU's copy waits, so that torch does not keep as much pinned memory of the host.
        """
        if self.device.type == "cpu":
            return self.device.from_host(weights)
        there = self.device.empty(weights.shape, dtype_name(weights.dtype))
        fill(there, weights)
        return there

    def share(self, size: int) -> slice:
        """This rank's part of `size` rows or columns; parts are equal, but those of the last ranks may be shorter."""
        part = -(-size // self.group.size)
        return slice(min(self.group.rank * part, size), min((self.group.rank + 1) * part, size))

    def share_of_heads(self, heads: int, head_size: int) -> slice:
        """This rank's rows of `heads` heads; with more ranks than heads, several adjacent ranks have the same head."""
        first = self.group.rank * heads // self.group.size
        return slice(first * head_size, (first + max(1, heads // self.group.size)) * head_size)


def configure_kernels(engine: EngineConfig) -> None:
    """Use the engine's number of threads, and its instructions, for the kernels of this process.

    Raises:
        ConfigError: the processor lacks the instructions, or this process has computed with others.
    """
    assert engine.device.num_threads is not None, "resolve_config chooses them"
    if (chosen := engine.device.instruction_set) != "auto":
        try:
            pyllm_kernels.use_instruction_set(chosen)
        except ValueError as error:
            raise ConfigError(f"instruction_set {chosen}: {error}") from None
    pyllm_kernels.set_num_threads(engine.device.num_threads)
