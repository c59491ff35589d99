"""Names of models with Ollama's tag: `NAME` and `NAME:latest` are one model, on every route; `NAME:TAG` is another."""

from collections.abc import Container

LATEST = ":latest"


def listed_name(name: str) -> str:
    """The name with a tag, as Ollama lists models."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


def known_name(name: str, known: Container[str]) -> str:
    """The name among the known ones that is the same model; without one, the name without its tag `latest`."""
    names = (name, name.removesuffix(LATEST), f"{name}{LATEST}")
    return next((other for other in names if other in known), name.removesuffix(LATEST))
