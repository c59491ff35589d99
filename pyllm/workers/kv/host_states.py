"""A rank's states on the host: their memory, and the swaps of whole states between the two.

Knows neither sequences nor why a state moves.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor

from pyllm.wire.plan_layout import SWAP_NAME_SIZE
from pyllm.workers.devices.device import Device
from pyllm.workers.kv.host_tier import HostTier
from pyllm.workers.kv.kv_cache import check_swaps
from pyllm.workers.step.batch import IntArray

_TIMED_ROUNDS = 3


class HostStates:
    """Host memory for `num_states` states of this stage's layers, [num_states, floats], and the swaps.

    - parts: of each layer of `StateCache`, float32 [num_states of the device, *shape]; none if no layer of this stage
      keeps a state.
    - device: the place of the parts; a swap waits for it.
    - num_on_device: states of the device.
    - tier: the memory, if it outlives this process; states swapped out are validated there.
    """

    def __init__(
        self,
        parts: list[Tensor],
        device: Device,
        num_on_device: int,
        num_states: int,
        tier: HostTier | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_states = num_states
        self._parts = [part.reshape(num_on_device, -1) for part in parts]
        self._device = device
        self._num_on_device = num_on_device
        self._tier = tier
        self._clock = clock
        if tier is None:
            self._memory = np.empty((num_states, sum(part.shape[1] for part in self._parts)), np.float32)
        else:
            self._memory = tier.blocks[:num_states]

    def swap(self, swaps: IntArray, names: npt.NDArray[np.uint8]) -> None:
        """Do a plan's swaps of states, as `HostPool.swap` those of blocks.

        Raises:
            ProtocolError: see `check_swaps`.
        """
        check_swaps(swaps, names, self._num_on_device, self.num_states, "state")
        num_outs = int(np.count_nonzero(swaps[:, 0] == 0))
        outs = swaps[:num_outs, 2]
        writes = None if self._tier is None or not num_outs else self._tier.begin(outs)
        for direction, state, host in swaps.tolist():
            start = 0
            for part in self._parts:
                held = self._memory[host, start : (start := start + part.shape[1])]
                if direction == 0:
                    held[:] = self._device.host_copy(part[state]).wait()
                else:
                    part[state] = self._device.from_host(held)
        if self._tier is not None and writes is not None:
            self._tier.finish(outs, names, writes)

    def time_swaps(self) -> float:
        """Measure the seconds to swap one state out and in again. Only for empty memory."""
        swaps = np.array([(0, 0, 0), (1, 0, 0)], np.int32)
        names = np.zeros(SWAP_NAME_SIZE, np.uint8)  # a name that no request can match
        seconds = []
        for _ in range(_TIMED_ROUNDS):
            started = self._clock()
            self.swap(swaps, names)
            seconds.append(self._clock() - started)
        if self._tier is not None:
            self._tier.forget()
        return min(seconds)
