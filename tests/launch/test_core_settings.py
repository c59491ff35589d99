import pytest

from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.launch.core_settings import address_of_core, placement_recording, settings_of_core


@pytest.mark.parametrize(
    ("address", "of_cores"),
    [
        ("tcp://*:5557", ("tcp://*:5557", "tcp://*:5559")),
        ("tcp://[::1]:65533", ("tcp://[::1]:65533", "tcp://[::1]:65535")),
        ("ipc:///run/events", ("ipc:///run/events", "ipc:///run/events_dp2")),
        ("tcp://*:*", ("tcp://*:*", "tcp://*:*")),
        ("tcp://127.0.0.1:0", ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")),
        ("", ("", "")),
    ],
)
def test_each_core_has_an_address_of_its_own(address: str, of_cores: tuple[str, str]) -> None:
    assert (address_of_core(address, 0), address_of_core(address, 2)) == of_cores


def test_a_port_beyond_the_last_is_refused_with_one_that_works() -> None:
    with pytest.raises(ConfigError, match=r"core 2 would need port 65536: give a port of at most 65533"):
        address_of_core("tcp://*:65534", 2)


def test_cores_share_nothing_that_is_written_to() -> None:
    config = engine_config(
        {
            "enable_kv_cache_events": True,
            "kv_events_endpoint": "tcp://*:5557",
            "kv_events_replay_endpoint": "tcp://*:5657",
            "scheduler_recording": "/tmp/steps",
        }
    )
    assert settings_of_core(config, 0) == config
    other = settings_of_core(config, 1)
    assert other.kv_events.kv_events_endpoint == "tcp://*:5558"
    assert other.kv_events.kv_events_replay_endpoint == "tcp://*:5658"
    assert other.scheduler.scheduler_recording == "/tmp/steps.core-1"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"data_parallel_size": 2, "scheduler_recording": "/tmp/steps"}, "/tmp/steps.placement-3"),
        ({"data_parallel_size": 1, "scheduler_recording": "/tmp/steps"}, ""),
        ({"data_parallel_size": 2}, ""),
        (
            {
                "data_parallel_size": 2,
                "data_parallel_placement": "round-robin",
                "scheduler_recording": "/tmp/steps",
            },
            "",
        ),
    ],
)
def test_an_api_process_that_chooses_between_cores_has_a_recording_of_its_own(
    options: dict[str, object], path: str
) -> None:
    assert placement_recording(engine_config(options), 3) == path
