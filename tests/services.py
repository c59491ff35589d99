"""Programs from outside that tests talk to. `make test` needs none of them; `make test-services` runs what does.

`python3 tests/services.py` prints the Debian packages of those that are missing.
"""

import shutil

# Each program's Debian package.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "systemd-analyze": "systemd",
}


class Marked:
    """The test that runs, if it lacks the mark `services`; set before each test."""

    lacking: str | None = None


def service_program(name: str) -> str:
    """The path of a program; fails where it is missing, or where the test that asks would run in `make test`."""
    assert Marked.lacking is None, f"{Marked.lacking} needs {name}: mark it with `pytest.mark.services`"
    path = shutil.which(name)
    assert path, f"{name} is missing: apt-get install {PACKAGES[name]}"
    return path


if __name__ == "__main__":
    print(*sorted({package for name, package in PACKAGES.items() if not shutil.which(name)}))
