"""A package that is installed as far as `importlib.metadata` can tell."""

from pathlib import Path


def install(folder: Path, group: str, entry_points: dict[str, str], **modules: str) -> None:
    """Write a distribution with entry points of this group (name to module:function), and modules by name and source.

    The caller puts the folder on the path.
    """
    information = folder / "theirs-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    (information / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
