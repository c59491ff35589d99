"""Names of models with Ollama's tag: `NAME` and `NAME:latest` are one model, on every route; `NAME:TAG` is another."""

LATEST = ":latest"


def listed_name(name: str) -> str:
    """The name with a tag, as Ollama lists models."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


def same_names(name: str) -> tuple[str, ...]:
    """The names of the same model: as given, without the tag, with it."""
    return name, name.removesuffix(LATEST), f"{name}{LATEST}"
