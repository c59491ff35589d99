"""A model that transformers computes, as data, and what its probe is asked and answers.

The probe (`pyllm/workers/transformers_backend/probe.py`) is a process of its own, so that nothing else imports
transformers to learn this.
"""

from collections.abc import Mapping

import msgspec

from pyllm.families.spec import ModelSpec


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`config` is the text of config.json; `tensors` has the shapes of the file's tensors, by their names."""

    config: str
    tensors: Mapping[str, tuple[int, ...]]


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """What the probe found.

    - `sources`: for the parameters that our own layers take, the names of the tensors that have them.
    - `transposed`: of those parameters, matrices whose tensor has a column an output.
    - `others`: tensors that transformers takes itself.
    - `skipped`: tensors that its model does not need.
    """

    spec: ModelSpec
    sources: Mapping[str, str]
    transposed: frozenset[str]
    others: tuple[str, ...]
    skipped: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The probe's other answer: why a model cannot run."""

    refused: str
