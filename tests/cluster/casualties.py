"""What poisoned requests have cost: the cores that they ended, and which of those were at work for others.

Reads what the poison put on record, and the crash records that supervisors leave.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.poison import Death

# Before a core's end. One request alone takes turns with all others, if there are any.
RECENT_STEPS = 4


class CrashRecords:
    """Reports of cores that died, by process id; those in the folders are collected whenever `look` is called.

    A folder keeps 16 of them: look more often than so many cores die.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._seen: set[Path] = set()
        self._reports: dict[int, Mapping[str, Any]] = {}

    def look(self) -> None:
        """Read what is new."""
        for folder in self._folders:
            for path in set(folder.glob("[0-9]*/report.json")) - self._seen:
                self._seen.add(path)
                report = json.loads(path.read_bytes())
                if "steps" in report and "pid" in report:
                    self._reports[report["pid"]] = report

    def num_others(self, pid: int) -> int | None:
        """Requests beside one in a core's last steps; None: there is no report of it."""
        report = self._reports.get(pid)
        return None if report is None else num_others(report)


def num_others(report: Mapping[str, Any]) -> int:
    """Requests that a core computed just before it died, beside one, by its report."""
    last = max((step["step"] for step in report["steps"]), default=0)
    recent = [step for step in report["steps"] if step["step"] > last - RECENT_STEPS]
    return max(0, len({(request["client"], request["request"]) for step in recent for request in step["requests"]}) - 1)


def deaths_by_request(deaths: Iterable[Death]) -> Mapping[str, list[Death]]:
    """The deaths of each poisoned request, in their order."""
    by_request: dict[str, list[Death]] = {}
    for death in deaths:
        by_request.setdefault(death.request, []).append(death)
    return by_request


def casualties(deaths: Sequence[Death], records: CrashRecords) -> dict[str, Any]:
    """How many processes each poisoned request has ended, at most; of cores also how many that worked for others."""
    most: Counter[str] = Counter()
    healthy, unknown = 0, 0
    for own in deaths_by_request(deaths).values():
        most[own[0].victim] = max(most[own[0].victim], len(own))
        if own[0].victim == "core":
            others = [records.num_others(death.pid) for death in own]
            unknown += others.count(None)
            healthy = max(healthy, sum(bool(number) for number in others))
    return {
        "most_workers": most["worker"],
        "most_cores": most["core"],
        "most_healthy_cores": healthy,
        "without_report": unknown,
    }
