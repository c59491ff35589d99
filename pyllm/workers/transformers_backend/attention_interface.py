"""The attention function that a transformers model calls in place of its own, and its masks.

transformers passes query, key and value after the rotation. `attending` sets the function that receives them: the
probe's function records each call (`meta_run.py`), a worker's computes attention over the paged cache (`model.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from pyllm.errors import ConfigError

NAME = "pyllm"
"""The `attn_implementation` under which transformers finds this attention."""

# Arguments that do not change the result: caches and outputs of models, positions, as query and key are already
# rotated, and properties that the mask has, too.
_HARMLESS = frozenset(
    {
        *("position_ids", "position_embeddings", "cache_position", "cache_params", "past_key_values"),
        *("output_attentions", "is_causal", "sliding_window", "dropout"),
    }
)


class Mask:
    """A stand-in for a mask tensor: the function that transformers would make the tensor from.

    `sees` takes batch, head, query and key, and returns whether the query attends to the key. A model that does more
    than pass the mask on computes attention itself, and gets a `ConfigError`.
    """

    __slots__ = ("sees",)

    def __init__(self, sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        self.sees = sees

    def __getattr__(self, name: str) -> Any:
        raise _computes_itself()

    def __getitem__(self, index: object) -> Any:
        """Return the mask for slices of the whole, which models take to fit it to their positions."""
        parts = index if isinstance(index, tuple) else (index,)
        if all(part is ... or (isinstance(part, slice) and not part.start and part.stop is None) for part in parts):
            return self
        raise _computes_itself()

    def __radd__(self, other: object) -> Any:
        raise _computes_itself()


def _computes_itself() -> ConfigError:
    return ConfigError("it computes attention itself, and not by transformers' interface")


class AttentionCall(NamedTuple):
    """One call of attention: query [tokens, heads, size], key and value [tokens, kv_heads, size]; sizes may differ."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    scale: float
    soft_cap: float | None
    sinks: Tensor | None


class Attend(Protocol):
    """Computes a call; returns [tokens, heads, size of a value]."""

    def __call__(self, call: AttentionCall, /) -> Tensor: ...


_ATTEND: ContextVar[Attend] = ContextVar("attend")


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Make models of this thread that were built for `NAME` call `attend` within this block."""
    token = _ATTEND.set(attend)
    try:
        yield
    finally:
        _ATTEND.reset(token)


def _attention(  # noqa: PLR0917  transformers defines the signature
    module: nn.Module,
    query: Tensor,  # [1, heads, tokens, size], and so on
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function, with transformers' signature."""
    unknown = [name for name, given in others.items() if name not in _HARMLESS and not _is_neutral(given)]
    if unknown:
        raise ConfigError(f"attention is called with {', '.join(sorted(unknown))}, which is not known")
    if attention_mask is not None and not isinstance(attention_mask, Mask):
        raise ConfigError("attention is called with a mask that the model makes itself")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        shapes = tuple(query.shape), tuple(key.shape)
        raise ConfigError(f"attention is called with a query of {shapes[0]} and a key of {shapes[1]}")
    call = AttentionCall(
        module,
        query=query[0].transpose(0, 1),
        key=key[0].transpose(0, 1),
        value=value[0].transpose(0, 1),
        mask=attention_mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        soft_cap=softcap,
        sinks=s_aux,
    )
    return _ATTEND.get()(call).unsqueeze(0), None


def _is_neutral(given: Any) -> bool:
    return given is None or (isinstance(given, bool | int | float) and not given)


def _mask(*_: Any, mask_function: Callable[..., Tensor], **__: Any) -> Mask:
    """The mask function, with transformers' signature."""
    return Mask(mask_function)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
