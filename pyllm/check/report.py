"""The report of a check: as JSON, as plain text, or as tables on a terminal. Decides only the wording."""

from typing import Any

import msgspec

from pyllm.check.findings import Finding
from pyllm.check.model_needs import ModelNeeds
from pyllm.checkpoint.hub import size_text
from pyllm.machine.processor import Processor
from pyllm.machine.software import Card, Software
from pyllm.machine.system_limits import SystemLimits

# A table's title and its rows, each a name and a text.
Section = tuple[str, list[tuple[str, str]]]

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `can_run` is false where a finding is an error."""

    can_run: bool
    processor: Processor
    limits: SystemLimits
    software: Software
    model: ModelNeeds | None
    findings: list[Finding]


def as_json(report: Report) -> str:
    """The report as JSON; sizes are numbers of bytes."""
    return msgspec.json.format(msgspec.json.encode(report)).decode()


def as_text(report: Report) -> str:
    """The report as plain text."""
    lines = []
    for title, rows in _sections(report):
        width = max(len(name) for name, _ in rows)
        lines += [title, *(f"  {name.ljust(width)}  {text}" for name, text in rows), ""]
    for finding in report.findings:
        lines += [f"{finding.severity}: {finding.problem}", *([f"  {finding.fix}"] if finding.fix else [])]
    return "\n".join([*lines, *([""] if report.findings else []), _verdict(report)])


def print_tables(report: Report, console: Any) -> None:
    """Print the report on a `rich` console."""
    from rich.table import Table
    from rich.text import Text

    for title, rows in _sections(report):
        table = Table(
            title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in rows:
            table.add_row(name, Text(text))
        console.print(table)
        console.print()
    for finding in report.findings:
        style = _STYLES[finding.severity]
        console.print(Text.assemble((f"{finding.severity}: ", style), finding.problem))
        if finding.fix:
            console.print(Text(f"  {finding.fix}", style="green"))
    console.print(Text(_verdict(report), style="bold"))


def _verdict(report: Report) -> str:
    what = "the model" if report.model is not None else "pyllm"
    count = sum(finding.severity == "error" for finding in report.findings)
    if report.can_run:
        return f"{what} can run here"
    return f"it cannot run here so: {count} {'error' if count == 1 else 'errors'}"


def _sections(report: Report) -> list[Section]:
    sections = [_processor(report.processor), _limits(report.limits), _software(report.software)]
    return [*sections, _model(report.model)] if report.model is not None else sections


def _processor(processor: Processor) -> Section:
    quota = "" if processor.quota is None else f", time for {processor.quota:g} of them"
    rows = [
        ("processor", processor.name),
        ("cores", f"{processor.usable_cores} usable of {processor.num_cores}{quota}"),
        ("features", " ".join(processor.features) or "none that kernels use"),
        *((f"kernels of {name}", kernel) for name, kernel in processor.kernels.items()),
    ]
    rows += [
        (f"NUMA node {node.index}", f"cores {node.cores}, {size_text(node.memory_bytes)}")
        for node in processor.numa_nodes
        if len(processor.numa_nodes) > 1
    ]
    return "Processor", rows


def _limits(limits: SystemLimits) -> Section:
    used = f", {size_text(limits.swap_used_bytes)} in use" if limits.swap_used_bytes else ""
    rows = [
        (f"memory of {memory.owner}", f"{size_text(memory.available)} available of {size_text(memory.total)}")
        for memory in limits.memory
    ]
    rows += [
        ("swap", f"{size_text(limits.swap_bytes)}{used}" if limits.swap_bytes else "none"),
        ("transparent huge pages", limits.transparent_huge_pages or "unknown"),
        ("open files", f"{_count(limits.open_files)}, can be raised to {_count(limits.most_open_files)}"),
        ("processes", f"{_count(limits.processes)}, control group {_count(limits.control_group_processes)}"),
    ]
    rows += [
        (
            folder.purpose,
            f"{folder.path}: {size_text(folder.free_bytes)} free{'' if folder.writable else ', read-only'}",
        )
        for folder in limits.folders
    ]
    return "Memory and limits", rows


def _software(software: Software) -> Section:
    rows = [("system", software.system), ("Python", software.python)]
    rows += [(name, version or "not installed") for name, version in software.packages.items()]
    rows.append(("CUDA driver", software.cuda_driver or "none"))
    rows += [(f"card {number}", _card(card)) for number, card in enumerate(software.cards)]
    return "Software and cards", rows


def _card(card: Card) -> str:
    can = [name for name, has in (("bfloat16", card.bfloat16), ("fp8", card.float8)) if has]
    kernels = f"Triton kernels, {', '.join(['float16', *can])}" if card.runs_kernels else "too old for Triton"
    return f"{card.name}, {size_text(card.memory_bytes)}, compute capability {card.capability}: {kernels}"


def _model(needs: ModelNeeds) -> Section:
    where = needs.device if needs.ranks == 1 else f"{needs.ranks} ranks on {needs.device}"
    quantised = "" if needs.quantization == "none" else f", weights {needs.quantization}"
    memory = "a card" if needs.device == "cuda" else "memory"
    rows = [
        ("architecture", f"{needs.architecture}, {needs.parameters / 1e6:,.0f} M parameters, {needs.format}"),
        ("computed", f"on {where} in {needs.dtype}{quantised}"),
        ("weights", size_text(needs.weights_bytes)),
        *([("processes", f"about {size_text(needs.process_bytes)}")] if needs.process_bytes else []),
        ("tables", size_text(needs.table_bytes)),
        ("activations of a step", f"about {size_text(needs.activation_bytes)} on each rank"),
        ("KV cache", f"{size_text(needs.kv_bytes_per_token)} a token in {needs.kv_cache_dtype}"),
        ("KV cache as set", size_text(needs.cache_bytes)),
        ("room for it", f"{size_text(max(0, needs.room_bytes))} of {size_text(needs.memory_bytes)} of {memory}"),
        ("context", f"{needs.context} tokens, {needs.longest_context} fit"),
    ]
    rows += [
        (f"at {fit.context} tokens", f"{_sequences(fit.sequences)} at once, {fit.most_sequences} with all the room")
        for fit in needs.fits
    ]
    return f"Model {needs.name}", rows


def _sequences(count: int) -> str:
    return f"{count} {'sequence' if count == 1 else 'sequences'}"


def _count(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
