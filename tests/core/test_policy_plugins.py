from importlib.metadata import EntryPoint

import pytest

from pyllm.core.policy_plugins import BUILT_IN, GROUP, find_policy, load_policy
from pyllm.errors import ConfigError


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_schedulers_own_policies_need_no_package_and_cannot_be_replaced(name: str) -> None:
    assert load_policy(name, [entry(name, "math:sqrt")]) is None


def test_a_policy_is_found_by_its_name() -> None:
    assert load_policy("root", [entry("floor", "math:floor"), entry("root", "math:sqrt")])(9.0) == 3.0


def test_finding_imports_nothing() -> None:
    found = find_policy("ghost", [entry("ghost", "no_such_module:key")])
    assert found is not None
    assert found.value == "no_such_module:key"


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="there is no policy 'roof'; there are fcfs, priority, shortest, fair, root"):
        find_policy("roof", [entry("root", "math:sqrt")])
    with pytest.raises(ConfigError, match="there is no policy ''"):
        find_policy("")


def test_a_package_seen_twice_is_one_and_two_of_one_name_are_refused() -> None:
    root = entry("root", "math:sqrt")
    assert find_policy("root", [root, root]) == root
    with pytest.raises(ConfigError, match="cmath:sqrt and math:sqrt"):
        find_policy("root", [root, entry("root", "cmath:sqrt")])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:key", "cannot be imported: No module named 'no_such_module'"),
        ("math:no_such_name", "cannot be imported"),
        ("math:pi", "is not callable, but 3.14"),
    ],
)
def test_what_cannot_be_a_policy_is_a_configuration_error(value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_policy("odd", [entry("odd", value)])
