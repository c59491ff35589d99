import shutil
from pathlib import Path

import pytest

from pyllm.config.options import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.launch import topology
from pyllm.launch.resolve import resolve_config
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=512)


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
    configure = topology.successive_configs(core)
    assert configure("") == core
    for number in (1, 2):
        successor = configure("tcp://127.0.0.1:4711")
        assert successor.bind == "tcp://127.0.0.1:4711"
        assert successor.engine.scheduler.scheduler_recording == f"{recording}.{number}"


def test_what_an_earlier_run_recorded_does_not_keep_a_core_from_taking_anothers_place(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number in (1, 3):
        (folder / f"recording.{number}").touch()
    configure = topology.successive_configs(_core(model, tmp_path, scheduler_recording=str(folder / "recording")))
    recordings = []
    for _ in range(3):
        recordings.append(configure("").engine.scheduler.scheduler_recording)
        if len(recordings) > 1:
            Path(recordings[-1]).touch()
    assert recordings == [str(folder / name) for name in ("recording", "recording.2", "recording.4")]
    shutil.rmtree(folder)
    assert configure("").engine.scheduler.scheduler_recording == ""
    assert "the next core is not recorded" in caplog.text
