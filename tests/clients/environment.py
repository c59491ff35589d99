"""One `uv` environment for each program, as their pins exclude one another. Knows no server and no check."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# Packages of gigabytes that most programs need for models of their own only; a program that does name them has them.
EXCLUDES = HERE / "excludes.txt"
# The programs' own dependencies are those of this day, so that a pinned environment stays as it was.
PINNED_DAY = "2026-11-23"


class Environment:
    """The environment of one program in a folder of `root`; made by `build`."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.folder = root / name
        self.python = self.folder / "bin" / "python"
        self._requirements = PROGRAMS / f"{name}.txt"

    def build(self, upgrade: bool) -> None:
        """Install the pinned versions, unless they are there; with `upgrade` the newest ones, pins or no pins.

        Raises:
            subprocess.CalledProcessError: uv could not; it has said why.
        """
        wanted = self._requirements.read_text()
        options = ["--exclude-newer", PINNED_DAY]
        if upgrade:
            wanted = re.sub(r"==\S+", "", wanted)
            options = ["--upgrade"]
        stamp = self.folder / ".installed"
        digest = hashlib.sha256("\n".join([wanted, *options, sys.version]).encode()).hexdigest()
        if not upgrade and stamp.is_file() and stamp.read_text() == digest:
            return
        stamp.unlink(missing_ok=True)
        uv = find_uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, self.folder], check=True)
        excludes = [] if "torch" in wanted else ["--excludes", str(EXCLUDES)]
        subprocess.run(
            [uv, "pip", "install", "--quiet", *excludes, *options, "--requirements", "-"],
            env={**os.environ, "VIRTUAL_ENV": str(self.folder)},
            input=wanted,
            text=True,
            check=True,
        )
        stamp.write_text(digest)

    def version(self) -> str:
        """The version of the program's own package, which stands first among its requirements."""
        package = re.split(r"[\[=]", self._requirements.read_text(), maxsplit=1)[0].strip()
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return subprocess.run([self.python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def find_uv() -> str:
    """The program's path: of the user's own, else of `.venv`."""
    own = Path(sys.executable).with_name("uv")
    found = shutil.which("uv") or (str(own) if own.is_file() else None)
    if found is None:
        raise FileNotFoundError("uv is missing: `make setup` installs it into .venv")
    return found
