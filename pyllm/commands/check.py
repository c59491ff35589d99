"""`pyllm check`: reports what this machine can do, what a model needs, and each problem with its fix. Loads no weights.

Takes the flags of `pyllm serve`, and checks them for the faults that would stop that command.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from pyllm import log
from pyllm.check.findings import Finding, find_problems, sort_findings
from pyllm.check.model_needs import ModelNeeds, needs_of_model
from pyllm.check.report import Report, as_json, as_text, print_tables
from pyllm.check.written_folders import written_folders
from pyllm.checkpoint.cache import CacheError, cache_folder, forget_gguf
from pyllm.checkpoint.hub import Hub, find_model, outline_model, size_text
from pyllm.checkpoint.model_name import HubName, at_revision, parse_model
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import config_part
from pyllm.config.rank_coordinates import num_all_ranks
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.flags.engine_arguments import MODEL_HELP, print_notices, read_engine
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)
from pyllm.launch.memory_check import check_memory
from pyllm.launch.model_overrides import chat_template_notice, check_overrides
from pyllm.launch.resolve import resolve_settings
from pyllm.launch.resolve_server import resolve_server
from pyllm.machine.cuda_driver import visible_cards
from pyllm.machine.processor import read_processor
from pyllm.machine.software import read_software
from pyllm.machine.system_limits import SystemLimits, read_limits
from pyllm.wire.listeners import bind_listener, bind_unix_listener

PARSER = SettingsParser
TAKES_CONFIG = True
USAGE = "pyllm check [MODEL] [--FLAG VALUE ...]"
COMMON = (
    *("json", "connections", "host", "port", "max-model-len", "max-num-seqs", "kv-cache-memory-bytes", "dtype"),
    *("gpu-memory-utilization", "tensor-parallel-size", "pipeline-parallel-size", "config"),
)
EXAMPLES = """examples:
  pyllm check                                           this machine
  pyllm check model.gguf --max-model-len 32k            what it needs, and what fits
  pyllm check --config server.yaml --connections 5000   a server before it is started

Exit code 0: it can run. 1: something is wrong that would stop it."""

_CANNOT_RUN = 1


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--connections", type=_count, default=256, metavar="N", help="clients that are connected at once (default: 256)"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags and values: max-model-len: 4096")
    add_settings(parser, ServerConfig)
    add_engine_settings(parser)
    add_vllm_flags(parser)
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Print the report; return 1 where something would stop a server.

    Raises:
        ConfigError: a value is wrong, or there is no such model.
    """
    engine, notices = read_engine(options)
    print_notices(notices)
    server = config_part(ServerConfig, given_settings(options, ServerConfig))
    limits, processor, software = read_limits(written_folders()), read_processor(), read_software()
    needs, found = _look_at_model(engine, limits) if engine.model.model else (None, [])
    with _Warnings() as warnings:
        found += _look_at_server(engine, server)
    found += [*warnings.findings, *_address(server)]
    found = sort_findings([*found, *find_problems(processor, limits, software, needs, options.connections)])
    can_run = all(finding.severity != "error" for finding in found)
    report = Report(can_run=can_run, processor=processor, limits=limits, software=software, model=needs, findings=found)
    if options.json:
        print(as_json(report))
    elif sys.stdout.isatty():
        from rich.console import Console

        print_tables(report, Console())
    else:
        print(as_text(report))
    return 0 if can_run else _CANNOT_RUN


def _look_at_model(engine: EngineConfig, limits: SystemLimits) -> tuple[ModelNeeds | None, list[Finding]]:
    """Needs of the model (None if it cannot be read), and the problems that a server would report before it loads it.

    Raises:
        ConfigError: there is no such model.
    """
    model = engine.model
    place = parse_model(at_revision(model.model, model.revision, "revision"))
    if not isinstance(place, HubName):
        if not place.exists():
            raise ConfigError(f"there is no model at {place}")
        return _needs(engine, place, "", limits)
    hub = Hub(cache_dir=model.download_dir or None, token=model.hf_token or None)
    try:
        path = find_model(place, msgspec.structs.replace(hub, offline=True))
    except ConfigError:  # Not on this machine, or incomplete: read the headers from the hub.
        return _outline_needs(engine, place, hub, limits)
    return _needs(engine, path, place.text, limits)


def _outline_needs(
    engine: EngineConfig, place: HubName, hub: Hub, limits: SystemLimits
) -> tuple[ModelNeeds | None, list[Finding]]:
    """Needs and problems of a model that is only on the hub, read from the headers of its files."""
    with tempfile.TemporaryDirectory(prefix="pyllm-check-") as folder:
        path = outline_model(place, hub, Path(folder))
        try:
            needs, found = _needs(engine, path, place.text, limits)
        finally:
            with suppress(CacheError):
                forget_gguf(path, cache_folder())
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    text = f"{place.text} is not on this machine: a server downloads {size_text(size)} first"
    return needs, [*found, Finding("note", text, f"Do it now: pyllm pull {place.text}.")]


def _needs(
    engine: EngineConfig, path: Path, name: str, limits: SystemLimits
) -> tuple[ModelNeeds | None, list[Finding]]:
    """Needs and problems of a model at a path; `name` is its name on the hub, or empty."""
    model = msgspec.structs.replace(engine.model, model=str(path), revision="")
    with _Warnings() as warnings:
        try:
            engine, checkpoint = resolve_settings(msgspec.structs.replace(engine, model=model))
        except ConfigError as error:
            return None, [*warnings.findings, Finding("error", str(error), "")]
        checkpoint = msgspec.structs.replace(checkpoint, name=name or checkpoint.name)
        warnings.findings += _look_at_template(checkpoint)
        parallel = engine.parallel
        memories = [memory.available // parallel.data_parallel_size for memory in limits.memory]
        if engine.device.device == "cuda":
            num_cards = num_all_ranks(parallel)
            memories = [card.memory_bytes for card in visible_cards()[:num_cards]]
        needs = needs_of_model(engine, checkpoint, memories)
        try:
            check_memory(engine, checkpoint, lambda: list(limits.memory))
        except ConfigError as error:
            return needs, [*warnings.findings, Finding("error", str(error), "")]
    return needs, warnings.findings


def _look_at_template(checkpoint: Checkpoint) -> list[Finding]:
    try:
        notice = chat_template_notice(checkpoint)
    except ConfigError as error:
        return [Finding("error", str(error), "")]
    problem, _, fix = notice.partition(": ")
    return [Finding("warning", problem, f"{fix[0].upper()}{fix[1:]}.")] if notice else []


def _look_at_server(engine: EngineConfig, server: ServerConfig) -> list[Finding]:
    """Problems that would stop a server whatever its model is."""
    from pyllm.frontend.edge.middleware import load_middleware

    found = _errors(lambda: resolve_server(server))
    found = found or _errors(*(partial(load_middleware, name) for name in server.middleware))
    if not engine.model.model:
        found += _errors(lambda: check_overrides(engine.model))
    return [*found, *_errors(lambda: log.check(engine.log))]


def _errors(*looks: Callable[[], object]) -> list[Finding]:
    found = []
    for look in looks:
        try:
            look()
        except ConfigError as error:
            found.append(Finding("error", str(error), ""))
    return found


def _address(server: ServerConfig) -> list[Finding]:
    """The problem that keeps a server from listening at its address, if there is one."""
    try:
        with bind_unix_listener(server.uds) if server.uds else bind_listener(server.host, server.port):
            return []
    except ConfigError as error:
        fix = "Stop what listens there, or give another --port."
        return [Finding("error", str(error).partition(";")[0], "Give another --uds." if server.uds else fix)]


class _Warnings(logging.Handler):
    """Collects the warnings that pyllm logs inside a `with` block, as findings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.findings: list[Finding] = []
        self._logger = logging.getLogger("pyllm")
        self._propagated = self._logger.propagate

    def __enter__(self) -> "_Warnings":
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated

    def emit(self, record: logging.LogRecord) -> None:
        """Add the record to the findings."""
        self.findings.append(Finding("warning", record.getMessage(), ""))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"needs a whole number, got {text!r:.80}")
    return int(text)
