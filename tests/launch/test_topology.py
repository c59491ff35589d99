import os
import shutil
from pathlib import Path

import msgspec
import pytest

from pyllm.config.credentials import Credentials
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig, SharedConfig, StateConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.launch import topology
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.launch.resolve import resolve_config
from pyllm.launch.service_manager import ServiceManager
from pyllm.wire.messages import Restarts
from pyllm.wire.supervision_messages import MAX_ENDED, CoreEntry, CoreList, Kept
from tests.frontend.api_config import api_config

NEVER_READ = LiveCredentials(ServerConfig(), Credentials(), ServiceManager(""))


def _core(model: str, folder: Path, **options: object) -> CoreConfig:
    engine, checkpoint = resolve_config(engine_config({"model": model, "device": "cpu", **options}))
    return CoreConfig(
        engine=engine,
        checkpoint=checkpoint,
        bind="tcp://127.0.0.1:0",
        socket_folder=str(folder),
        ready_timeout=1.0,
        shutdown_timeout=1.0,
    )


def test_a_core_that_takes_anothers_place_serves_its_address_and_records_to_a_file_of_its_own(
    model: str, tmp_path: Path
) -> None:
    recording = tmp_path / "recording"
    core = _core(model, tmp_path, scheduler_recording=str(recording))
    configure = topology.SuccessiveCores(core).configure
    assert configure("") == core
    for number in (1, 2):
        successor = configure("tcp://127.0.0.1:4711")
        assert successor.is_successor
        assert successor.bind == "tcp://127.0.0.1:4711"
        assert successor.engine.scheduler.scheduler_recording == f"{recording}.{number}"


def test_cores_of_one_engine_differ_by_their_index(model: str, tmp_path: Path) -> None:
    options = {"model": model, "device": "cpu", "data_parallel_size": 3}
    engine, checkpoint = resolve_config(engine_config(options))
    configs = topology.core_configs(engine, checkpoint, str(tmp_path), 1.0, 1.0)
    assert [config.index for config in configs] == [0, 1, 2]
    assert [config.bind for config in configs] == [f"ipc://{tmp_path}/core-{index}" for index in range(3)]
    assert {config.fork_server for config in configs} == {""}
    engine_processes = topology.supervised_engine(configs)
    assert (len(engine_processes.cores), len(engine_processes.fork_servers)) == (3, 0)
    device = msgspec.structs.replace(engine.device, kernel_backend="triton")
    configs = topology.core_configs(msgspec.structs.replace(engine, device=device), checkpoint, str(tmp_path), 1.0, 1.0)
    assert {config.fork_server for config in configs} == {f"{tmp_path}/forks"}
    engine_processes = topology.supervised_engine(configs)
    assert (len(engine_processes.cores), len(engine_processes.fork_servers)) == (3, 1)


@pytest.mark.parametrize(
    ("options", "backend", "needed"),
    [
        ({}, "mp", False),
        ({"kernel_backend": "triton"}, "mp", True),
        ({"device": "cuda"}, "mp", True),
        ({"device": "cuda"}, "uni", False),
    ],
)
def test_a_fork_server_is_for_worker_processes_that_need_torch(
    model: str, tmp_path: Path, options: dict[str, str], backend: str, needed: bool
) -> None:
    core = _core(model, tmp_path, distributed_executor_backend=backend)
    engine = msgspec.structs.replace(core.engine, device=msgspec.structs.replace(core.engine.device, **options))
    address = topology.fork_server_address(engine, core.checkpoint, str(tmp_path))
    assert address == (f"{tmp_path}/forks" if needed else "")


def test_a_fork_server_imports_what_the_model_needs(model: str, tmp_path: Path) -> None:
    core = _core(model, tmp_path)
    assert topology.worker_entry(core) == "pyllm.workers.worker_process:prepare_torch"


@pytest.mark.parametrize(
    ("backend", "size", "count"), [("mp", "1MiB", 3), ("mp", 0, 0), ("uni", "1MiB", 0)], ids=["mp", "no pool", "uni"]
)
def test_each_rank_that_is_a_process_has_host_memory_that_outlives_it(
    model: str, tmp_path: Path, backend: str, size: object, count: int
) -> None:
    options = {"kv_offloading_size": size, "distributed_executor_backend": backend}
    core = _core(model, tmp_path, **options, tensor_parallel_size=1 if backend == "uni" else 3)
    memories = topology.HostMemories(core)
    files = list(memories.files)
    assert [os.readlink(f"/proc/self/fd/{file}") for file in files] == [
        f"/memfd:pyllm host blocks of rank {rank} (deleted)" for rank in range(count)
    ]
    memories.close()
    memories.close()
    assert not any(os.path.exists(f"/proc/self/fd/{file}") for file in files)


def test_what_an_earlier_run_recorded_does_not_keep_a_core_from_taking_anothers_place(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number in (1, 3):
        (folder / f"recording.{number}").touch()
    core = _core(model, tmp_path, scheduler_recording=str(folder / "recording"))
    configure = topology.SuccessiveCores(core).configure
    recordings = []
    for _ in range(3):
        recordings.append(configure("").engine.scheduler.scheduler_recording)
        if len(recordings) > 1:
            Path(recordings[-1]).touch()
    assert recordings == [str(folder / name) for name in ("recording", "recording.2", "recording.4")]
    shutil.rmtree(folder)
    assert configure("").engine.scheduler.scheduler_recording == ""
    assert "the next core is not recorded" in caplog.text


def test_the_next_shared_state_has_the_cores_of_the_one_before() -> None:
    shared = SharedConfig(core_addresses=("ipc://0",), max_num_seqs=4)
    first = StateConfig(shared=shared, bind="ipc://state")
    states = topology.SuccessiveStates(first)
    states.keep(Kept(settings={"not": "of a state"}))
    assert states.configure("") == first
    cores = CoreList(3, (CoreEntry(1, "ipc://1", 4),), 2)
    states.keep(Kept(cores=cores))
    assert states.configure("") == msgspec.structs.replace(first, shared=msgspec.structs.replace(shared, cores=cores))


def test_an_api_process_that_takes_anothers_place_has_its_cores(tmp_path: Path) -> None:
    first = api_config(tmp_path, "ipc://core")
    apis = topology.SuccessiveApis(first, NEVER_READ)
    assert apis.configure("") == first
    cores = CoreList(3, (CoreEntry(1, "ipc://1", 4),), 2)
    apis.keep(Kept(cores=cores))
    second = apis.configure("")
    assert (second.shared.cores, second.placement_recording) == (cores, "")


def test_an_api_process_that_takes_anothers_place_records_to_a_file_of_its_own(tmp_path: Path) -> None:
    recording = tmp_path / "recording.placement-0"
    config = api_config(tmp_path, "ipc://core", placement_recording=str(recording))
    configure = topology.SuccessiveApis(config, NEVER_READ).configure
    assert configure("") == config
    Path(f"{recording}.2").touch()  # of an earlier run
    configs = [configure(""), configure("")]
    assert [each.placement_recording for each in configs] == [f"{recording}.1", f"{recording}.3"]


def test_the_next_core_has_what_the_ones_before_have_left(model: str, tmp_path: Path) -> None:
    levels: list[str] = []
    core = msgspec.structs.replace(_core(model, tmp_path, tensor_parallel_size=3), fork_server="forks")
    cores = topology.SuccessiveCores(core, levels.append)
    assert cores.configure("") == core
    cores.keep(Kept(settings={"watermark": 0.5}))
    cores.keep(Kept(ended=tuple({"name": number} for number in range(MAX_ENDED))))
    cores.keep(Kept(settings={"watermark": 0.5, "log_level": "DEBUG"}, ended=({"name": "last"},)))
    assert levels == ["DEBUG"]
    cores.lose_workers("core 0 was killed by SIGKILL")
    kept = cores.configure("ipc://core").kept
    assert kept.settings == {"watermark": 0.5, "log_level": "DEBUG"}
    assert [report["name"] for report in kept.ended] == [*range(1, MAX_ENDED), "last"]
    assert kept.workers is not None
    assert [(each.num_restarts, each.reason) for each in kept.workers] == [(1, "core 0 was killed by SIGKILL")] * 3
    cores.keep(Kept(workers=tuple(Restarts(pid, 3, 0.0, "a") for pid in (7, 8, 9))))
    cores.lose_workers("core 0 exited with code 1")
    assert [each.num_restarts for each in cores.configure("").kept.workers or ()] == [4, 4, 4]
