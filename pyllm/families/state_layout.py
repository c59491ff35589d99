"""The states of a model: their shapes, their bytes, and how many a rank has beside its KV blocks. Knows no blocks.

A state is what all layers with a recurrence keep of a sequence after some of its tokens, in float32.
"""

from collections.abc import Iterable
from math import prod

from pyllm.families.spec import LightningSpec, ModelSpec, RecurrenceSpec, Shape

_FLOAT_BYTES = 4
_STATES_A_SEQUENCE = 8  # its own, and checkpoints; more are of little use
_LEAST_INTERVAL = 256  # tokens
_INTERVAL_ALONE = 2048  # tokens


def state_shapes(recurrence: RecurrenceSpec, ranks: int) -> tuple[Shape, ...]:
    """The shapes of one layer's part of a state on each of `ranks`.

    They are the last inputs of its convolution, [width - 1, features], and the matrix of each head, if there are any.
    """
    memory = recurrence.memory(ranks)
    if isinstance(recurrence, LightningSpec):
        return (memory,)
    convolution = (recurrence.width - 1, recurrence.convolved_features(ranks))
    return (convolution, memory) if memory else (convolution,)


def state_bytes(spec: ModelSpec, ranks: int, layers: Iterable[int]) -> int:
    """Bytes of one state in these layers, on each of `ranks`."""
    recurrences = (spec.layers[layer].recurrence for layer in layers)
    shapes = (state_shapes(recurrence, ranks) for recurrence in recurrences if recurrence is not None)
    return _FLOAT_BYTES * sum(prod(shape) for of_layer in shapes for shape in of_layer)


def fitting_states(room: int, bytes_of_one: int, max_num_seqs: int, *, has_blocks: bool = True) -> int:
    """The number of states for which a cache of `room` bytes has place.

    Beside blocks they take up to half of it: each running sequence has one to write, and the others are checkpoints.
    """
    room = room // 2 if has_blocks else room
    return min(room // bytes_of_one, _STATES_A_SEQUENCE * max_num_seqs)


def host_states(spec: ModelSpec, ranks: int, size: int) -> int:
    """The number of states in half of `size` bytes, the host memory of all stages with `ranks` each."""
    bytes_of_one = ranks * state_bytes(spec, ranks, range(len(spec.layers)))
    return size // 2 // bytes_of_one if bytes_of_one else 0


def checkpoint_tokens(spec: ModelSpec, kv_element_bytes: int) -> int:
    """Tokens of a prompt between two checkpoints, so that these take no more memory than its keys and values.

    A fixed number where there are none.
    """
    kv_bytes = kv_element_bytes * sum(attention.cached_vectors * attention.kv_size for attention in spec.attentions)
    if not kv_bytes:
        return _INTERVAL_ALONE
    return max(_LEAST_INTERVAL, state_bytes(spec, 1, range(len(spec.layers))) // kv_bytes)
