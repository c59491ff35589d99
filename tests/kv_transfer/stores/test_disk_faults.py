"""The disk store on a disk that fails in every way: no wrong block, and never a byte more than the bound."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores.disk_store import DiskStore
from pyllm.kv_transfer.stores.store import Retention
from tests.kv_transfer.stores.blocks import key_of, load, lookup, save
from tests.kv_transfer.stores.simulated_disk import Faults, KilledError, SimulatedDisk, SimulatedFiles

FOLDER = Path("/kv")
CAPACITY = 8 * 4096
LOCK_BYTES = 8
NUM_KEYS = 120
NUM_PROCESSES = 3


class Machine:
    """Processes with a store each, on one disk. A dead one starts anew when it is asked again."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.disk = SimulatedDisk(seed)
        self.faults = faults
        self.files = [SimulatedFiles(self.disk, faults) for _ in range(NUM_PROCESSES)]
        self.stores: list[DiskStore | None] = [None] * NUM_PROCESSES
        self.num_deaths = 0
        self.num_loaded = 0

    def run(self, process: int, numbers: range, retention: Retention | None) -> None:
        """Save the blocks, or load them where there is no retention."""
        try:
            store = self.stores[process] or self._start(process)
            if retention is not None:
                save(store, numbers, retention)
            lookup(store, numbers)
            self.num_loaded += len(load(store, numbers))
            stats = store.stats()[0]
            assert stats.live_bytes <= stats.used_bytes <= CAPACITY
        except KilledError:
            self.num_deaths += 1
            self.stores[process] = None
        except ConfigError:  # The folder could not be read at the start.
            self.files[process].die()
        self.check()

    def kill(self, process: int, after: int) -> None:
        """At its operation `after` from now on."""
        files = self.files[process]
        files.kill_at = files.num_operations + after

    def lose_power(self) -> None:
        for process, files in enumerate(self.files):
            files.die()
            self.stores[process] = None
        self.disk.lose_power()
        self.check()

    def heal(self) -> None:
        self.faults = Faults()
        for process, files in enumerate(self.files):
            files.die()
            self.stores[process] = None

    def check(self) -> None:
        assert self.disk.peak_bytes <= CAPACITY + LOCK_BYTES

    def _start(self, process: int) -> DiskStore:
        if self.files[process].is_dead:
            self.files[process] = SimulatedFiles(self.disk, self.faults)
        store = DiskStore(FOLDER, CAPACITY, self.files[process])
        self.stores[process] = store
        return store


def is_usable(machine: Machine) -> None:
    """With no more faults, nothing of the bound is lost: new blocks fill it, and every process finds them."""
    machine.heal()
    for start in range(1000, 1100, 10):
        machine.run(start // 10 % NUM_PROCESSES, range(start, start + 10), "default")
    machine.run(0, range(0), None)
    writer = machine.stores[0]
    assert writer is not None
    figures = writer.stats()[0]
    assert figures.live_bytes >= CAPACITY / 2
    assert writer.lookup([key_of(1099)]) == [True]
    named = list(machine.disk.names.values())
    assert all(inode in named for inode in machine.disk.inodes() if inode.content)


rates = st.sampled_from((0.0, 0.0, 0.01, 0.1))
faults = st.builds(Faults, rates, rates, rates, rates, rates)
ranges = st.builds(lambda start, size: range(start, start + size), st.integers(0, NUM_KEYS), st.integers(1, 12))
retentions = st.sampled_from((None, "default", "default", "long"))
processes = st.integers(0, NUM_PROCESSES - 1)
actions = st.one_of(
    st.tuples(st.just("run"), processes, ranges, retentions),
    st.tuples(st.just("kill"), processes, st.integers(1, 150)),
    st.tuples(st.just("lose power")),
)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), faults=faults, actions=st.lists(actions, min_size=10, max_size=60))
def test_no_wrong_block_and_no_byte_too_many(seed: int, faults: Faults, actions: list[tuple]) -> None:
    machine = Machine(seed, faults)
    for name, *arguments in actions:
        {"run": machine.run, "kill": machine.kill, "lose power": machine.lose_power}[name](*arguments)
    is_usable(machine)


@settings(max_examples=12)
@given(share=st.floats(0, 1, exclude_max=True), loses_power=st.booleans())
def test_a_process_may_die_at_each_of_its_operations(share: float, loses_power: bool) -> None:
    """As it fills the store, evicts and carries on; another one goes on with what it leaves."""
    machine = Machine(0, Faults())
    machine.kill(0, 1 + int(share * NUM_OPERATIONS))
    _fill(machine, 0)
    assert machine.num_deaths == 1
    _fill(machine, 1)
    if loses_power:
        machine.lose_power()
    is_usable(machine)


def _fill(machine: Machine, process: int) -> None:
    for start in range(0, 60, 5):
        machine.run(process, range(start, start + 5), "default")
        machine.run(1, range(0, start, 3), None)


def _count_operations() -> int:
    machine = Machine(0, Faults())
    _fill(machine, 0)
    return machine.files[0].num_operations


NUM_OPERATIONS = _count_operations()


def test_without_faults_each_block_is_found() -> None:
    machine = Machine(0, Faults())
    machine.run(0, range(10), "default")
    assert machine.num_loaded == 10
    machine.run(1, range(10), None)
    assert machine.num_loaded == 20
    machine.heal()
    machine.run(2, range(10), None)
    assert machine.num_loaded == 30


def test_a_flipped_bit_is_a_miss_for_every_process() -> None:
    machine = Machine(0, Faults())
    machine.run(0, range(4), "default")
    for path, inode in machine.disk.names.items():
        if path.suffix == ".segment":
            inode.content[1500] ^= 4
    machine.run(1, range(4), None)
    assert machine.num_loaded == 4 + 3
    assert machine.stores[1] is not None
    assert machine.stores[1].stats()[0].num_corrupt == 1
    machine.run(0, range(4), None)
    assert machine.num_loaded == 4 + 3 + 3
    assert machine.stores[0] is not None
    assert machine.stores[0].stats()[0].num_corrupt == 0  # The first one to see it has told.


def test_a_power_loss_takes_some_blocks_which_are_saved_again() -> None:
    num_left = 0
    for seed in range(8):
        machine = Machine(seed, Faults())
        machine.run(0, range(15), "default")
        machine.lose_power()
        machine.run(0, range(15), None)
        num_left += machine.num_loaded - 15
        machine.run(1, range(15), "default")  # It takes those that a list names to be there, until it loads them.
        before = machine.num_loaded
        machine.run(1, range(15), "default")
        machine.run(0, range(15), None)
        assert machine.num_loaded - before == 2 * 15
    assert 0 < num_left < 8 * 15
