"""The configuration of each process of a server, as its parent sends it. Resolved: nothing in it is `auto` or None."""

from typing import Literal

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.catalogue_settings import CatalogueEntry
from pyllm.config.credentials import Credentials
from pyllm.config.engine_settings import CorePlacement, EngineConfig, LogConfig
from pyllm.config.server_settings import IDEMPOTENCY_RETENTION, MAX_STORED_RESPONSES, ServerConfig
from pyllm.wire.curve import CurveKeys
from pyllm.wire.supervision_messages import CoreList, Kept


class _ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CoreConfig(_ProcessConfig, frozen=True):
    """The configuration of one EngineCore process.

    `is_successor`: whether it replaces a core, whose clients wait for it; `kept`: the state that the old core left.
    """

    engine: EngineConfig
    checkpoint: Checkpoint
    bind: str  # ZeroMQ address of the ROUTER
    socket_folder: str  # private, for the workers' sockets
    ready_timeout: float
    shutdown_timeout: float
    curve_keys: str = ""  # folder with keys for tcp://; empty: no encryption
    fork_server: str = ""  # path of the socket of the process that forks workers; empty: the core starts them
    index: int = 0
    is_successor: bool = False
    kept: Kept = Kept()


class WorkerConfig(_ProcessConfig, frozen=True):
    """The configuration of one rank.

    Without a `gpu`, the rank uses the one of its own number. `curve_keys` are for a tcp:// address, and `client_key` is
    the core's public key. By their `rank_secret`, ranks on CPUs of several machines know one another.
    """

    engine: EngineConfig
    checkpoint: Checkpoint
    rank: int
    address: str  # ZeroMQ address that this rank binds its DEALER to; the core connects
    rendezvous: str  # where the ranks meet: file://PATH, or tcp://HOST:PORT for ranks of several machines
    lock: str = ""  # path of the file that this rank locks while it lives; empty: nobody waits for its end
    core_index: int = 0
    gpu: int | None = None
    host: str = ""  # this machine's address for the other ranks; empty: all of them are on this machine
    curve_keys: CurveKeys | None = None
    client_key: bytes = b""
    rank_secret: bytes = b""


def needs_torch(engine: EngineConfig, checkpoint: Checkpoint) -> bool:
    """Whether tensors are torch's: on a GPU, for a transformers model, and for Triton's interpreter."""
    device, spec = engine.device, checkpoint.spec
    return device.device == "cuda" or device.kernel_backend == "triton" or spec.transformers is not None


class ForkServerConfig(_ProcessConfig, frozen=True):
    """The configuration of the fork server."""

    bind: str  # path of its socket, in a private folder
    entry: str  # "module:function": it imports all code of a worker, and returns the function that each worker runs
    max_workers: int = 256  # alive at the same time
    log: LogConfig = LogConfig()


class SharedConfig(_ProcessConfig, frozen=True):
    """The configuration of the state that API processes share. Limits of 0 mean no limit.

    The server starts with the cores at `core_addresses`, in the order of their indices. `cores` are the last ones of
    the previous shared state, if there was one.
    """

    core_addresses: tuple[str, ...] = ()
    cores: CoreList | None = None
    max_num_seqs: int = 1  # sum over these cores
    max_num_queued_reqs: int = 0
    scales_queue: bool = False  # whether that limit follows the number of cores
    max_num_queued_tokens: int = 0
    idempotency_retention: float = IDEMPOTENCY_RETENTION
    max_stored_responses: int = MAX_STORED_RESPONSES


class StateConfig(_ProcessConfig, frozen=True):
    """The configuration of the process that holds the shared state, where there is one."""

    shared: SharedConfig
    bind: str  # ZeroMQ address of the ROUTER
    log: LogConfig = LogConfig()


class ApiConfig(_ProcessConfig, frozen=True):
    """The configuration of one API process. Without a `state_address` it is the only one, and holds the shared state
    itself. The shared state knows the cores.
    """

    server: ServerConfig
    checkpoint: Checkpoint
    served_model_name: tuple[str, ...]
    placement: CorePlacement = "prefix"  # policy that chooses the core of a request
    placement_recording: str = ""  # path of a new file for a recording of it; empty: none
    index: int = 0
    seed: int | None = None
    log: LogConfig = LogConfig()
    shared: SharedConfig = SharedConfig()
    state_address: str = ""
    credentials: Credentials = Credentials()
    flight_recorder_dir: str = ""  # folder of crash records
    max_loras: int = 0  # adapters in a step of a core; 0: it serves none
    download_dir: str = ""  # folder of downloads; empty: huggingface_hub's
    is_on_gpu: bool = False  # whether the cores compute on GPUs


# A model is loaded in this order; `waiting` is for memory that others have to give back.
ModelStage = Literal["unloaded", "reading", "waiting", "loading", "loaded", "unloading", "failed"]


class ModelNews(_ProcessConfig, frozen=True):
    """The stage of one model of a catalogue, for the `wish` of this number; -1: there was none yet.

    `num_bytes` is the memory that it takes once loaded, 0 while that is not known. `reason` says why it failed, `api`
    has what an API process needs to serve it.
    """

    name: str
    stage: ModelStage = "unloaded"
    wish: int = -1
    num_bytes: int = 0
    reason: str = ""
    api: ApiConfig | None = None


class CatalogueNews(_ProcessConfig, frozen=True):
    """The supervisor's news to the API process of a catalogue."""

    credentials: Credentials
    models: tuple[ModelNews, ...]


class CatalogueApiConfig(_ProcessConfig, frozen=True):
    """The configuration of the API process of a catalogue. Memory is in bytes; 0 models: no bound.

    A successor begins with the `wanted` models, see `CatalogueChoices`, and the aliases of its predecessor; `last_wish`
    is the highest number of a wish so far, -1 for the first process.
    """

    server: ServerConfig
    entries: tuple[CatalogueEntry, ...]
    aliases: dict[str, dict[str, float]]
    memory_budget: int
    max_loaded_models: int
    wanted: dict[str, int] = {}
    last_wish: int = -1
    log: LogConfig = LogConfig()
    credentials: Credentials = Credentials()
    flight_recorder_dir: str = ""
    download_dir: str = ""
