"""The sentence about a package that only an extra of pyllm installs. Does not know who needs the package."""


def missing_extra(name: str, package: str) -> str:
    """Says that `package` is missing, with the command that installs it by the extra `name`.

    pip reads the extras of an installed pyllm, so the same command is right for wheels and for a checkout.
    """
    return f"{package} is not installed: pip install 'pyllm[{name}]'"
