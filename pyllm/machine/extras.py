"""The packages that only an extra of pyllm installs, and the sentence about a missing one. Imports none of them."""

import importlib.util

GPU_PACKAGES = ("torch", "triton")
TRANSFORMERS_PACKAGES = ("torch", "transformers")


def is_installed(package: str) -> bool:
    """Whether a package can be imported, by its import name."""
    return importlib.util.find_spec(package) is not None


def extra_command(name: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'pyllm[{name}]'"


def missing_extra(name: str, package: str) -> str:
    """Says that `package` is missing, with the command that installs it by the extra `name`.

    pip reads the extras of an installed pyllm, so the same command is right for wheels and for a checkout.
    """
    return f"{package} is not installed: {extra_command(name)}"
