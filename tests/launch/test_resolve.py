from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.launch.probe_process import probe_model
from pyllm.launch.resolve import _transfer, resolve_config
from pyllm.machine.cuda_driver import VisibleCard
from tests.tiny_model import write_tiny_model

GIB = 1 << 30
A100, T4 = VisibleCard(80, 39 * GIB + GIB // 2), VisibleCard(75, 15 * GIB)


def test_resolve_leaves_nothing_open(model: str) -> None:
    config, checkpoint = resolve_config(engine_config({"model": model, "device": "cpu"}))
    assert config.model.dtype == "float32"
    assert config.model.max_model_len == 512
    assert config.model.served_model_name == (checkpoint.name,)
    assert config.device.device == "cpu"
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (128, 192)


def test_tensors_that_are_not_loaded_are_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(write_tiny_model(tmp_path))
    heads = {f"score.{name}.weight": np.ones(2, np.float32) for name in "abcdef"}
    save_file(load_file(folder / "model.safetensors") | heads, folder / "model.safetensors")
    resolve_config(engine_config({"model": str(folder), "device": "cpu"}))
    listed = ", ".join(f"score.{name}.weight" for name in "abcde")
    assert f"6 tensors are not loaded, as its text model has none such: {listed}, ..." in caplog.text


@pytest.mark.parametrize(
    ("cards", "options", "limits"),
    [
        ([A100], {}, (256, 8192)),
        ([T4], {}, (128, 2048)),
        ([A100, T4], {}, (256, 8192)),  # one rank, on the first
        ([A100, T4], {"tensor_parallel_size": 3}, None),
        ([A100, A100, T4], {"tensor_parallel_size": 3}, (128, 2048)),
        ([A100], {"max_num_seqs": 16}, (16, 8192)),
        ([A100], {"max_num_batched_tokens": 512}, (256, 512)),
        ([A100], {"device": "cpu"}, (128, 192)),
        ([], {}, (128, 192)),
    ],
)
def test_cards_with_much_memory_take_larger_steps(
    model: str, cards: list[VisibleCard], options: dict[str, Any], limits: tuple[int, int] | None
) -> None:
    chosen = engine_config({"model": model, "dtype": "float16", **options})
    if limits is None:
        with pytest.raises(ConfigError, match=r"3 rank\(s\) need as many cards, 2 are visible"):
            resolve_config(chosen, probe_model, lambda: cards)
        return
    config, _ = resolve_config(chosen, probe_model, lambda: cards)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == limits


def test_every_rank_of_every_core_has_a_card(model: str) -> None:
    options = {"model": model, "dtype": "float16", "data_parallel_size": 2, "tensor_parallel_size": 3}
    with pytest.raises(ConfigError, match=r"2 cores \(data_parallel_size\) of 3 rank\(s\) need 6 cards, 5 are"):
        resolve_config(engine_config(options), probe_model, lambda: [A100] * 5)
    config, _ = resolve_config(engine_config(options), probe_model, lambda: [*[A100] * 5, T4])
    assert config.scheduler.max_num_batched_tokens == 2048  # as the last core's last rank can


def test_no_core_records_over_what_is_there(model: str, tmp_path: Path) -> None:
    options = {"model": model, "device": "cpu", "scheduler_recording": str(tmp_path / "steps")}
    (tmp_path / "steps.core-1").touch()
    resolve_config(engine_config(options))
    with pytest.raises(ConfigError, match=r"steps\.core-1"):
        resolve_config(engine_config(options | {"data_parallel_size": 2}))


def test_every_sequence_has_a_token_in_a_step_unless_said_otherwise(model: str) -> None:
    options = {"model": model, "device": "cpu", "max_num_seqs": 300}
    many, _ = resolve_config(engine_config(options))
    few, _ = resolve_config(engine_config(options | {"max_num_batched_tokens": 64}))
    assert (many.scheduler.max_num_batched_tokens, few.scheduler.max_num_batched_tokens) == (300, 64)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 5),
        ({"kernel_backend": "cpu", "attention_backend": "cpu"}, 5),
        ({"kernel_backend": "reference"}, 0),
        ({"attention_backend": "sdpa"}, 0),
        ({"dtype": "float16"}, 5),
        ({"kernel_backend": "reference", "num_speculative_tokens": 3}, 3),
        ({"num_speculative_tokens": 0}, 0),
    ],
)
def test_tokens_are_guessed_where_that_changes_no_bit(model: str, options: dict[str, Any], expected: int) -> None:
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu", **options}))
    assert config.scheduler.num_speculative_tokens == expected


def test_ranks_on_gpus_may_be_batch_invariant(model: str) -> None:
    options = {"model": model, "tensor_parallel_size": 3, "batch_invariant": True, "disable_custom_all_reduce": True}
    config, _ = resolve_config(engine_config(options), probe_model, lambda: [A100] * 3)
    assert (config.device.device, config.device.batch_invariant) == ("cuda", True)
    assert config.parallel.disable_custom_all_reduce


def test_what_was_asked_for_stays(model: str) -> None:
    options = {"model": model, "device": "cpu", "dtype": "bfloat16", "max_model_len": 100, "async_scheduling": False}
    config, _ = resolve_config(engine_config(options | {"served_model_name": "mine"}))
    assert config.model.dtype == "bfloat16"
    assert config.model.max_model_len == 100
    assert config.model.served_model_name == ("mine",)
    assert config.scheduler.async_scheduling is False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_model_len": 513}, "512"),
        ({"block_size": 12}, "power of two"),
        ({"batch_invariant": True, "kernel_backend": "reference"}, "not kernel_backend reference"),
        ({"batch_invariant": True, "attention_backend": "sdpa"}, "not attention_backend sdpa"),
        ({"tensor_parallel_size": 2}, "1, 3"),
        ({"tensor_parallel_size": 3, "distributed_executor_backend": "uni"}, "mp"),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "uni"}, "mp"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size 3 is more than the model's 2 layers"),
        ({"max_pinned_blocks": 1, "enable_prefix_caching": False}, "enable_prefix_caching"),
        ({"enable_kv_cache_events": True, "enable_prefix_caching": False}, "enable_prefix_caching"),
        ({"kv_cache_dir": "/tmp/kv", "enable_prefix_caching": False}, "blocks of the prefix cache"),
        ({"kv_transfer_config": '{"kv_connector": "Nope"}'}, "no KV connector 'Nope'; there are StoreConnector"),
        (
            {
                "kv_transfer_config": '{"kv_connector": "StoreConnector", "kv_connector_extra_config": '
                '{"io_threads": 0}}'
            },
            "io_threads of StoreConnector must be above 0",
        ),
        ({"kv_cache_disk_size": 1 << 30}, "none is given: kv_cache_dir"),
        ({"kv_events_endpoint": "tcp://*:5557"}, "enable_kv_cache_events"),
        ({"kv_events_replay_endpoint": "tcp://*:5558", "enable_kv_cache_events": True}, "kv_events_endpoint"),
        ({"kv_cache_dtype": "fp8"}, "fp8 is for GPUs, and the device is cpu: use bfloat16, or auto"),
        ({"attention_backend": "flash"}, "there are auto, triton, cpu, sdpa"),
        ({"sparse_attention": "h2o"}, "there is no sparse attention 'h2o'; there are quest, mean"),
        ({"scheduling_policy": "lifo"}, "there are fcfs, priority, shortest, fair"),
        ({"scheduler_recording": "/nowhere/recording"}, "there is no folder /nowhere"),
        ({"scheduler_recording": __file__}, "exists and is not overwritten"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(model: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve_config(engine_config({"model": model, "device": "cpu", **options}))


def test_a_recording_has_an_absolute_path_and_is_not_made_yet(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"model": model, "device": "cpu", "scheduler_recording": "recording"}
    config, _ = resolve_config(engine_config(options))
    assert config.scheduler.scheduler_recording == str(tmp_path / "recording")
    assert not (tmp_path / "recording").exists()


def test_the_folder_for_crashes_is_absolute_and_tried_where_it_was_given(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu"}))
    assert config.recovery.flight_recorder_dir == str(tmp_path / "state/pyllm/crashes")
    assert not (tmp_path / "state").exists()
    monkeypatch.chdir(tmp_path)
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu", "flight_recorder_dir": "mine"}))
    assert config.recovery.flight_recorder_dir == str(tmp_path / "mine")
    with pytest.raises(ConfigError, match="flight_recorder_dir"):
        resolve_config(engine_config({"model": model, "device": "cpu", "flight_recorder_dir": f"{__file__}/x"}))


def test_a_store_chooses_its_connector_unless_one_is_given(model: str, tmp_path: Path) -> None:
    def resolved(**options: Any) -> Any:
        config, _ = resolve_config(engine_config({"model": model, "device": "cpu", **options}))
        return config.kv_transfer.kv_transfer_config

    assert resolved() is None
    assert resolved(kv_cache_dir=str(tmp_path)).kv_connector == "StoreConnector"
    assert resolved(kv_cache_redis_url="redis://localhost").kv_connector == "StoreConnector"
    own = '{"kv_connector": "Mine", "kv_role": "kv_consumer", "kv_connector_module_path": "mine"}'
    assert resolved(kv_cache_dir=str(tmp_path), kv_transfer_config=own).kv_connector == "Mine"


@pytest.mark.parametrize(("backend", "is_told"), [("ray", True), ("mp", False)])
def test_a_folder_of_kv_blocks_must_be_shared_by_the_nodes_of_a_cluster(
    caplog: pytest.LogCaptureFixture, backend: str, is_told: bool
) -> None:
    # Not through `resolve_config`, which needs Ray.
    _transfer(engine_config({"kv_cache_dir": "/kv", "distributed_executor_backend": backend}))
    assert ("kv_cache_dir /kv must be one folder for all nodes" in caplog.text) is is_told
    caplog.clear()
    _transfer(engine_config({"kv_cache_redis_url": "redis://host", "distributed_executor_backend": "ray"}))
    assert not caplog.records


def test_a_model_may_have_several_names_each_once(model: str) -> None:
    names = ["chat", "gpt", "chat"]
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu", "served_model_name": names}))
    assert config.model.served_model_name == ("chat", "gpt")
    config, checkpoint = resolve_config(engine_config({"model": model, "device": "cpu", "served_model_name": ""}))
    assert config.model.served_model_name == (checkpoint.name,)


def test_the_token_of_the_hub_is_forgotten(model: str) -> None:
    """Crashes are recorded with the configuration."""
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu", "hf_token": "hf_secret"}))
    assert config.model.hf_token == ""
    assert "hf_secret" not in repr(config)


def test_the_configuration_of_the_folder_may_be_changed(model: str) -> None:
    options = {"model": model, "device": "cpu", "hf_overrides": {"max_position_embeddings": 128}}
    assert resolve_config(engine_config(options))[0].model.max_model_len == 128


def test_a_file_for_the_log_has_an_absolute_path(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = resolve_config(engine_config({"model": model, "device": "cpu", "log_config_file": "log.json"}))
    assert config.log.log_config_file == str(tmp_path / "log.json")


def test_ranks_of_a_ray_cluster_need_ray_and_none_of_this_machines_cards(model: str) -> None:
    options = {"model": model, "device": "cuda", "tensor_parallel_size": 3, "distributed_executor_backend": "ray"}
    with pytest.raises(ConfigError, match=r"and ray is not installed: pip install 'pyllm\[ray\]', here and on every"):
        resolve_config(engine_config(options), probe_model, list, lambda package: package != "ray")
    config, _ = resolve_config(engine_config(options), probe_model, list, lambda package: package == "ray")
    assert config.parallel.ray_address == "auto"


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_a_card_without_its_packages(model: str, missing: str, caplog: pytest.LogCaptureFixture) -> None:
    """The CPU runs the model, unless the card was asked for."""

    def has_package(package: str) -> bool:
        return package != missing

    config, _ = resolve_config(engine_config({"model": model}), probe_model, lambda: [A100], has_package)
    assert config.device.device == "cpu"
    said = f"1 card(s) are visible, and {missing} is not installed: pip install 'pyllm[gpu]'; this runs on the CPU"
    assert [record.message for record in caplog.records] == [said]
    with pytest.raises(ConfigError, match=rf"cuda, and {missing} is not installed: pip install 'pyllm\[gpu\]'"):
        resolve_config(engine_config({"model": model, "device": "cuda"}), probe_model, lambda: [A100], has_package)
    for name in ("kernel_backend", "attention_backend"):
        options = {"model": model, "device": "cpu", name: "triton"}
        with pytest.raises(
            ConfigError, match=rf"{name} triton: {missing} is not installed: pip install 'pyllm\[gpu\]'"
        ):
            resolve_config(engine_config(options), probe_model, list, has_package)


def test_a_machine_without_cards_needs_none_of_their_packages(model: str, caplog: pytest.LogCaptureFixture) -> None:
    config, _ = resolve_config(engine_config({"model": model}), probe_model, list, lambda package: False)
    assert config.device.device == "cpu"
    assert caplog.records == []
