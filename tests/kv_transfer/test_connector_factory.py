"""Connectors by name: ours, an entry point's, a module's; and what is refused."""

from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig, read_kv_transfer
from pyllm.errors import ConfigError
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.connector_factory import KV_CONNECTORS, find_connector, make_scheduler_connector
from pyllm.kv_transfer.store_connector import StoreConnector
from pyllm.kv_transfer.store_lookup import StoreLookup

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=4, num_ranks=1)
STORE = {"store": "tests.kv_transfer.dict_store:open_dict", "store_options": {"name": "factory"}}


def config(name: str, **keys: Any) -> KVTransferConfig:
    return KVTransferConfig(kv_connector=name, **keys)


def test_ours_is_found_by_its_name_and_made() -> None:
    assert find_connector(config("StoreConnector")) is StoreConnector
    made = make_scheduler_connector(config("StoreConnector", kv_connector_extra_config=STORE), CONTEXT)
    assert isinstance(made, StoreLookup)
    made.shutdown()


def test_another_is_an_entry_point_or_an_attribute_of_a_module() -> None:
    offered = [EntryPoint("Mine", "pyllm.kv_transfer.store_connector:StoreConnector", KV_CONNECTORS)]
    assert find_connector(config("Mine"), offered) is StoreConnector
    module = config("StoreConnector", kv_connector_module_path="pyllm.kv_transfer.store_connector")
    assert find_connector(module) is StoreConnector


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (config("NixlConnector"), r"no KV connector 'NixlConnector'; .* group pyllm.kv_connectors"),
        (config("Mine", kv_connector_module_path="tests.nowhere"), "cannot be imported: No module named"),
        (config("STORE", kv_connector_module_path=__name__), "must be a pyllm.kv_transfer.KVConnector"),
    ],
)
def test_what_is_no_connector_is_refused_by_name(refused: KVTransferConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        find_connector(refused)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "there is no store of KV blocks: give kv_cache_dir"),
        ({"stores": "x"}, "unknown field `stores`; its keys are store,"),
        (STORE | {"io_threads": 257}, "io_threads of StoreConnector must be at most 256, not 257"),
        (STORE | {"load_timeout": 61}, "load_timeout of StoreConnector must be at most 60, not 61"),
        (STORE | {"lookup_timeout": 21}, "lookup_timeout of StoreConnector must be at most 20, not 21"),
        (STORE | {"io_threads": 0}, "io_threads of StoreConnector must be above 0, not 0"),
        ({"store": "tests.nowhere:open"}, "the store 'tests.nowhere:open' cannot be opened"),
    ],
)
def test_a_store_connector_names_the_setting_that_is_wrong(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_scheduler_connector(config("StoreConnector", kv_connector_extra_config=extra), CONTEXT)


@pytest.mark.parametrize("cache", [{"kv_cache_dir": "/kv"}, {"kv_cache_redis_url": "redis://host"}])
def test_a_store_beside_those_of_the_cache_settings_is_refused(cache: dict[str, str]) -> None:
    context = msgspec.structs.replace(CONTEXT, cache=CacheConfig(**cache))
    with pytest.raises(ConfigError, match="takes the place of those in kv_cache_dir"):
        make_scheduler_connector(config("StoreConnector", kv_connector_extra_config=STORE), context)


def test_the_setting_is_json_with_vllms_keys() -> None:
    text = '{"kv_connector": "StoreConnector", "kv_role": "kv_producer", "kv_load_failure_policy": "fail"}'
    read = read_kv_transfer(text)
    assert read == config("StoreConnector", kv_role="kv_producer", kv_load_failure_policy="fail")
    assert read is not None
    assert (read.saves, read.loads) == (True, False)
    assert read_kv_transfer(" ") is None
    for wrong in ('{"kv_role": "kv_both"}', '{"kv_connector": "x", "kv_port": 1}', "[]"):
        with pytest.raises(ConfigError, match="cannot read kv_transfer_config"):
            read_kv_transfer(wrong)
