"""A model that transformers computes, as data: the request to its probe, and the probe's answers.

The probe (`pyllm/workers/transformers_backend/probe.py`) is its own process, so that no other process imports
transformers for this.
"""

from collections.abc import Mapping

import msgspec

from pyllm.families.spec import ModelSpec


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the probe: `config` is the text of config.json, `tensors` has the shapes of tensors by name."""

    config: str
    tensors: Mapping[str, tuple[int, ...]]


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """The probe's result.

    - `sources`: the tensor for each parameter of pyllm's layers.
    - `transposed`: the parameters of `sources` whose tensor has one column an output.
    - `others`: tensors that transformers loads itself.
    - `skipped`: tensors that the model does not need.
    """

    spec: ModelSpec
    sources: Mapping[str, str]
    transposed: frozenset[str]
    others: tuple[str, ...]
    skipped: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The probe's refusal, with the reason why a model cannot run."""

    refused: str
