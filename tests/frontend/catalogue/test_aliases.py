"""An alias's models get their shares of the requests, evenly."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.catalogue.aliases import Aliases


def test_five_percent_of_the_requests_go_to_the_canary_and_are_spread() -> None:
    aliases = Aliases({"chat": {"old": 95, "new": 5}})
    dealt = [aliases.deal("chat", {"old", "new"}) for _ in range(1000)]
    assert dealt.count("new") == 50
    at = [index for index, name in enumerate(dealt) if name == "new"]
    assert {later - earlier for earlier, later in itertools.pairwise(at)} == {20}


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 50), min_size=1), st.integers(1, 300))
def test_any_number_of_requests_is_dealt_by_the_shares(shares: dict[str, float], count: int) -> None:
    aliases = Aliases({"any": shares})
    dealt = [aliases.deal("any", shares) for _ in range(count)]
    for name, share in shares.items():
        assert abs(dealt.count(name) - count * share / sum(shares.values())) <= len(shares)


def test_a_model_that_is_not_allowed_leaves_its_share_to_the_others() -> None:
    aliases = Aliases({"chat": {"old": 1, "new": 1}})
    assert {aliases.deal("chat", {"new"}) for _ in range(4)} == {"new"}
    assert aliases.deal("chat", {"third"}) is None


def test_a_replaced_alias_counts_at_once() -> None:
    aliases = Aliases({"chat": {"old": 1}})
    aliases.replace("chat", {"new": 1})
    assert aliases.deal("chat", {"old", "new"}) == "new"
    aliases.replace("chat", {})
    assert aliases.shares == {}
