import pytest

from pyllm.kv_transfer.stores.block_record import checksum


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "99aa06d3014798d86001c324468d497f"),
        (b"a", "a96faf705af16834e6c632b61e964e1f"),
        (bytes(range(256)) * 4096, "1b208d2839093774d36c0e13a3df139e"),
    ],
)
def test_the_checksum_of_a_value_is_xxh3(value: bytes, expected: str) -> None:
    """By Python's `xxhash` 4.1.0: files of an earlier version stay valid."""
    assert checksum(memoryview(value)).hex() == expected
