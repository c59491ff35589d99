"""The states of one rank's layers with a recurrence. Knows neither sequences nor the use of a state."""

from collections.abc import Iterable

from pyllm_kernels.tensors import Tensor

from pyllm.families.spec import ModelSpec
from pyllm.families.state_layout import state_shapes
from pyllm.workers.devices.device import Device


class StateCache:
    """`num_states` states. `layers` has the parts of each layer, float32 [num_states, *shape], by its index.

    `state_shapes` has the shapes. The memory starts as zeros, but no row reads a state that none has written.
    """

    def __init__(self, spec: ModelSpec, ranks: int, layers: Iterable[int], num_states: int, device: Device) -> None:
        self.num_states = num_states
        self.layers: dict[int, tuple[Tensor, ...]] = {}
        for layer in layers:
            if (recurrence := spec.layers[layer].recurrence) is not None:
                shapes = state_shapes(recurrence, ranks)
                self.layers[layer] = tuple(device.zeros((num_states, *shape), "float32") for shape in shapes)
