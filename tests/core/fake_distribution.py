"""A package that is installed as far as `importlib.metadata` can tell."""

from pathlib import Path

from pyllm.core.policy_plugins import GROUP


def install(folder: Path, policies: dict[str, str], **modules: str) -> None:
    """Write a distribution with these entry points, and modules by name and source; the caller puts it on the path."""
    information = folder / "fake_policies-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-policies\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in policies.items())
    (information / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
