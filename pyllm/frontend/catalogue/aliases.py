"""Other names of models: each stands for one model, or for several by their shares. Knows no request."""

from collections.abc import Collection, Mapping


class Aliases:
    """The aliases by name, each with its models' shares.

    Requests are dealt out evenly: of any n requests in a row, a model with share s of the sum gets n s, give or take
    the number of models. Source: nginx's smooth weighted round-robin.
    """

    def __init__(self, shares: Mapping[str, Mapping[str, float]]) -> None:
        self._shares = {alias: dict(each) for alias, each in shares.items()}
        self._owed: dict[str, dict[str, float]] = {}

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """All aliases with their models' shares."""
        return self._shares

    def replace(self, alias: str, shares: Mapping[str, float]) -> None:
        """Set an alias at once; without shares it is removed."""
        self._owed.pop(alias, None)
        self._shares.pop(alias, None)
        if shares:
            self._shares[alias] = dict(shares)

    def deal(self, alias: str, allowed: Collection[str]) -> str | None:
        """The model of the next request, among those that are allowed; None where the alias has none of them."""
        shares = {name: share for name, share in self._shares[alias].items() if name in allowed}
        if len(shares) < 2:
            return next(iter(shares), None)
        owed = self._owed.setdefault(alias, {})
        for name, share in shares.items():
            owed[name] = owed.get(name, 0.0) + share
        chosen = max(shares, key=lambda name: owed[name])
        owed[chosen] -= sum(shares.values())
        return chosen
