"""Plugins: entry points of other packages, found by name in pyllm's groups. Does not know their purpose."""

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pyllm.errors import ConfigError, RequestError

LOGITS_PROCESSORS = "pyllm.logits_processors"
SAMPLERS = "pyllm.samplers"
TOOL_PARSERS = "pyllm.tool_parsers"
REASONING_PARSERS = "pyllm.reasoning_parsers"


def offered_names(group: str) -> frozenset[str]:
    """The names of entry points in a group."""
    return frozenset(entry.name for entry in entry_points(group=group))


def arguments_by_plugin(arguments: Mapping[str, Any], plugins: Collection[str]) -> dict[str, Any]:
    """The arguments of each logits processor or sampler, by its name, from a request's `extra_args`.

    A value under a plugin's name is for this plugin. Plain values under other names, as in vLLM, are for the only
    installed plugin, as a dict.

    Raises:
        RequestError: there is no plugin of such a name, or plain values could be for several.
    """
    known = ", ".join(sorted(plugins)) or "none"
    named = {name: value for name, value in arguments.items() if name in plugins}
    others = {name: value for name, value in arguments.items() if name not in plugins}
    for name, value in others.items():
        if isinstance(value, dict):
            raise RequestError(f"there is no logits processor or sampler {name!r}; installed are {known}", "extra_args")
    if not others:
        return named
    if named or len(plugins) != 1:
        text = f"which logits processor or sampler gets {', '.join(others)!s:.80} is not clear; installed are {known}"
        raise RequestError(f'{text}: give its arguments below its name, as {{"name": {{...}}}}', "extra_args")
    return dict.fromkeys(plugins, others)


def find_entry_point(
    kind: str, name: str, group: str, built_in: Collection[str], offered: Iterable[EntryPoint] | None = None
) -> EntryPoint | None:
    """The entry point of that name in `group`, or among those `offered`; None for a name in `built_in`.

    `kind` is the name of such plugins in errors.

    Raises:
        ConfigError: there is no such entry point, or several that differ.
    """
    if name in built_in:
        return None
    entries = list(entry_points(group=group) if offered is None else offered)
    found = {entry.value: entry for entry in entries if entry.name == name}
    if not found:
        known = ", ".join([*built_in, *sorted({entry.name for entry in entries})]) or "none"
        raise ConfigError(f"there is no {kind} {name!r}; there are {known}; others are entry points of group {group}")
    if len(found) > 1:
        several = " and ".join(sorted(found))
        raise ConfigError(f"{kind} {name!r} is offered as {several}: uninstall all packages but one of these")
    return next(iter(found.values()))
