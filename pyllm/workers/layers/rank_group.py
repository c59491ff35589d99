"""The ranks that share one model: joining them, and their collectives.

Knows no layer. With one rank there is nothing to join, and every collective returns its input.
"""

from typing import Protocol, Self

from pyllm_kernels.tensors import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.layers.host_ranks import HostRanks
from pyllm.workers.layers.rank_rendezvous import Place, meet


class Exchange(Protocol):
    """The exchange of tensors between ranks: `HostRanks` between CPUs, `NcclRanks` between GPUs.

    See `RankGroup` for the collectives. `send` and `receive` are between pipeline stages, see `StageLink`.
    """

    def sum(self, part: Tensor) -> Tensor: ...
    def gather(self, part: Tensor) -> list[Tensor]: ...
    def concatenate(self, part: Tensor) -> Tensor | None: ...
    def broadcast(self, tensor: Tensor) -> None: ...
    def allocate_messages(self, num_messages: int, num_bytes: int) -> None: ...
    def send(self, states: Tensor) -> None: ...
    def receive(self, states: Tensor) -> None: ...


class RankGroup:
    """Rank `rank` of the `size` ranks of a pipeline stage. A single rank has no `exchange`."""

    def __init__(self, rank: int = 0, size: int = 1, exchange: Exchange | None = None) -> None:
        self.rank = rank
        self.size = size
        self._exchange = exchange

    @classmethod
    def join(
        cls,
        place: Place,
        device: Device,
        rendezvous: str,
        *,
        batch_invariant: bool = False,
        only_nccl: bool = False,
        host: str = "",
        secret: bytes = b"",
    ) -> Self:
        """Wait until all ranks have arrived at `rendezvous`: `file://PATH` on one machine, or `tcp://HOST:PORT`.

        The group has the ranks of this rank's stage. With `batch_invariant` GPUs add up in rank order, as CPUs do; with
        `only_nccl`, and with several stages, they share no memory. Over TCP, `host` is this machine's address for the
        other ranks, and CPUs refuse connections of processes that do not know the `secret`.

        Raises:
            ConfigError: this machine does not have the address `host`.
        """
        exchange: Exchange | None = None
        if device.type == "cuda":
            from pyllm.workers.devices.torch_device import TorchDevice
            from pyllm.workers.layers.nccl_ranks import NcclRanks

            assert isinstance(device, TorchDevice), "GPUs are torch's"
            exchange = NcclRanks.join(
                place, device.device, rendezvous, in_rank_order=batch_invariant, only_nccl=only_nccl
            )
        elif place.num_ranks > 1:
            exchange = HostRanks(meet(place, rendezvous, host, secret), place)
        return cls(place.rank % place.size, place.size, exchange)

    @property
    def exchange(self) -> Exchange:
        """The exchange of several ranks."""
        assert self._exchange is not None, "one rank has nobody to exchange tensors with"
        return self._exchange

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors of floats, on every rank; it may be written into `part`."""
        return part if self.size == 1 else self.exchange.sum(part)

    def gather(self, part: Tensor) -> list[Tensor]:
        """All ranks' tensors in rank order, on every rank: views of one tensor."""
        return [part] if self.size == 1 else self.exchange.gather(part)

    def concatenate(self, part: Tensor) -> Tensor | None:
        """All ranks' tensors [rows, columns] side by side in rank order, on rank 0; None on the others."""
        return part if self.size == 1 else self.exchange.concatenate(part)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor; on the other ranks it is written into `tensor`."""
        if self.size > 1:
            self.exchange.broadcast(tensor)
        return tensor
