"""Finds the KV connector of a setting, and makes its halves. Knows only our own connector by name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.config.plugins import find_entry_point
from pyllm.errors import ConfigError
from pyllm.kv_transfer.scheduler_connector import ConnectorContext, SchedulerConnector
from pyllm.kv_transfer.store_settings import read_store_settings
from pyllm.kv_transfer.worker_connector import WorkerConnector

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KV_CONNECTORS = "pyllm.kv_connectors"
Half = TypeVar("Half", SchedulerConnector, WorkerConnector)

BUILT_IN = {"StoreConnector": "pyllm.kv_transfer.store_connector"}


class KVConnector(NamedTuple):
    """A connector: the classes of its two halves. A module's attribute, or an entry point of `KV_CONNECTORS`."""

    scheduler: type[SchedulerConnector]
    worker: type[WorkerConnector]


def find_connector(config: KVTransferConfig, offered: "Iterable[EntryPoint] | None" = None) -> KVConnector:
    """The classes that the setting names.

    Raises:
        ConfigError: there is no such connector, it cannot be imported, or it is not a `KVConnector`.
    """
    name, entry = config.kv_connector, _entry_point(config, offered)
    value = entry.value
    try:
        connector: Any = entry.load()
    except Exception as error:
        raise ConfigError(f"KV connector {name!r} ({value}) cannot be imported: {error}") from error
    if not isinstance(connector, KVConnector):
        raise ConfigError(
            f"KV connector {name!r} ({value}) must be a pyllm.kv_transfer.KVConnector of two classes, "
            f"not {connector!r:.80}"
        )
    return connector


def check_connector(config: KVTransferConfig, offered: "Iterable[EntryPoint] | None" = None) -> None:
    """Check the setting as far as possible without importing another package.

    Raises:
        ConfigError: there is no connector with this name, or the settings of our own connector are wrong.
    """
    _entry_point(config, offered)
    if config.kv_connector in BUILT_IN and config.kv_connector_module_path is None:
        read_store_settings(config)


def make_scheduler_connector(config: KVTransferConfig, context: ConnectorContext) -> SchedulerConnector:
    """Make the core's half of the connector.

    Raises:
        ConfigError: there is no such connector, or it refuses its settings.
    """
    return _made(config, context, find_connector(config).scheduler)


def make_worker_connector(config: KVTransferConfig, context: ConnectorContext) -> WorkerConnector:
    """Make a rank's half of the connector.

    Raises:
        ConfigError: there is no such connector, or it refuses its settings.
    """
    return _made(config, context, find_connector(config).worker)


def _entry_point(config: KVTransferConfig, offered: "Iterable[EntryPoint] | None") -> "EntryPoint":
    name = config.kv_connector
    module = config.kv_connector_module_path or BUILT_IN.get(name)
    if module is not None:
        from importlib.metadata import EntryPoint

        return EntryPoint(name, f"{module}:{name}", KV_CONNECTORS)
    found = find_entry_point("KV connector", name, KV_CONNECTORS, tuple(BUILT_IN), offered)
    assert found is not None, "none of its names is built in"
    return found


def _made(config: KVTransferConfig, context: ConnectorContext, half: type[Half]) -> Half:
    try:
        return half(config, context)
    except ConfigError:
        raise
    except Exception as error:
        text = f"KV connector {config.kv_connector!r} did not start: {type(error).__name__}: {error}"
        raise ConfigError(text) from error
