"""Plugins: entry points of other packages, found by name in pyllm's groups. Does not know their purpose."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pyllm.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOGITS_PROCESSORS = "pyllm.logits_processors"
SAMPLERS = "pyllm.samplers"
TOOL_PARSERS = "pyllm.tool_parsers"
REASONING_PARSERS = "pyllm.reasoning_parsers"


def offered_names(*groups: str) -> frozenset[str]:
    """The names of entry points in these groups. Reads files of every package: 25 ms where there are many."""
    from importlib.metadata import entry_points  # Imported here: it takes 20 ms of each process's start.

    found = entry_points()
    return frozenset(entry.name for group in groups for entry in found.select(group=group))


def find_entry_point(
    kind: str, name: str, group: str, built_in: Collection[str], offered: "Iterable[EntryPoint] | None" = None
) -> "EntryPoint | None":
    """The entry point of that name in `group`, or among those `offered`; None for a name in `built_in`.

    `kind` is the name of such plugins in errors.

    Raises:
        ConfigError: there is no such entry point, or several that differ.
    """
    if name in built_in:
        return None
    if offered is None:
        from importlib.metadata import entry_points

        offered = entry_points(group=group)
    entries = list(offered)
    found = {entry.value: entry for entry in entries if entry.name == name}
    if not found:
        known = ", ".join([*built_in, *sorted({entry.name for entry in entries})]) or "none"
        raise ConfigError(f"there is no {kind} {name!r}; there are {known}; others are entry points of group {group}")
    if len(found) > 1:
        several = " and ".join(sorted(found))
        raise ConfigError(f"{kind} {name!r} is offered as {several}: uninstall all packages but one of these")
    return next(iter(found.values()))
