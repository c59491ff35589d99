"""Records stay within bounds, and with their owner."""

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.shared.stored_responses import StoredResponses


def test_who_was_used_least_recently_leaves_first() -> None:
    store = StoredResponses(2)
    store.put("a", "", b"1")
    store.put("b", "", b"2")
    assert store.get("a", "") == b"1"
    store.put("c", "", b"3")
    assert [store.get(name, "") for name in "abc"] == [b"1", None, b"3"]


def test_bytes_are_bounded_too_and_what_is_too_large_is_not_kept() -> None:
    store = StoredResponses(10, max_bytes=5)
    store.put("a", "", b"123")
    store.put("b", "", b"123")
    assert [store.get(name, "") for name in "ab"] == [None, b"123"]
    store.put("b", "", b"1234567")
    assert store.get("b", "") is None


def test_another_owners_are_not_found() -> None:
    store = StoredResponses(10)
    store.put("a", "me", b"1")
    assert store.get("a", "you") is None
    assert not store.delete("a", "you")
    assert store.delete("a", "me")
    assert not store.delete("a", "me")


@given(st.lists(st.tuples(st.sampled_from("pgd"), st.sampled_from("abcde"), st.binary(max_size=6))))
def test_a_store_is_a_bounded_dictionary(calls: list[tuple[str, str, bytes]]) -> None:
    store = StoredResponses(3, max_bytes=10)
    model: dict[str, bytes] = {}
    for call, name, record in calls:
        match call:
            case "p":
                store.put(name, "", record)
                model.pop(name, None)
                model[name] = record
                while len(model) > 3 or sum(map(len, model.values())) > 10:
                    del model[next(iter(model))]
            case "g":
                assert store.get(name, "") == model.get(name)
                if name in model:
                    model[name] = model.pop(name)
            case _:
                assert store.delete(name, "") == (model.pop(name, None) is not None)
    assert {name: store.get(name, "") for name in "abcde"} == {name: model.get(name) for name in "abcde"}


def test_a_smaller_store_keeps_what_was_used_last_and_grows_again() -> None:
    store = StoredResponses(10, max_bytes=8)
    for name in "abcd":
        store.put(name, "", b"12")
    store.resize(0.5)
    assert [store.get(name, "") for name in "abcd"] == [None, None, b"12", b"12"]
    store.put("e", "", b"12")
    assert [store.get(name, "") for name in "cde"] == [None, b"12", b"12"]
    store.resize(1.0)
    store.put("f", "", b"1234")
    assert store.get("d", "") == b"12"
