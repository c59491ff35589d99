"""Log-probabilities of a step's tokens as columns for the core. Does not compute them and knows no slots."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm.wire.messages import Logprobs
from pyllm.workers.devices.device import HostCopy

Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.signedinteger]


class Entries(NamedTuple):
    """The log-probabilities of some tokens, one after another: ids and ranks int32, values float32."""

    ids: Ints
    values: npt.NDArray[np.float32]
    ranks: Ints


_NO_ENTRIES = Entries(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """The log-probabilities of M tokens, with at most K likeliest others each, still being copied."""

    num_entries: Ints  # [M], 1 + the number wanted
    ids: HostCopy  # int32 [M, 1 + K]
    values: HostCopy  # float32 [M, 1 + K]
    ranks: HostCopy  # int32 [M]

    def is_done(self) -> bool:
        """Whether `entries` would not wait."""
        return self.ids.is_done() and self.values.is_done() and self.ranks.is_done()

    def entries(self, kept: npt.NDArray[np.bool_]) -> Entries:
        """The entries of the kept tokens, one after another."""
        ids, values = self.ids.wait(), self.values.wait()
        # The likeliest tokens have ranks in order; the token's own rank also counts tokens of equal probability.
        ranks = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
        ranks[:, 0] = self.ranks.wait()
        wanted = (np.arange(ids.shape[1]) < self.num_entries[:, None]) & kept[:, None]
        return Entries(ids[wanted], values[wanted], ranks[wanted])


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The scored prompt tokens of one row of a step, in parts as they were computed."""

    row: int
    tokens: Ints
    parts: tuple[LogprobRows, ...]


def columns(starts: Ints, positions: Indices, sampled: list[LogprobRows], prompts: list[PromptLogprobs]) -> Logprobs:
    """The columns of a step.

    `starts` [rows + 1] are the offsets of each row's reported tokens. `positions` [M] are the indices of the tokens of
    `sampled` among the reported ones, in order; -1 for a token that is not reported.
    """
    num_entries = np.zeros(int(starts[-1]), np.int32)
    found = [_NO_ENTRIES]
    for rows in sampled:
        of, positions = np.split(positions, [len(rows.num_entries)])
        kept = of >= 0
        np.add.at(num_entries, of[kept], rows.num_entries[kept])
        found.append(rows.entries(kept))
    entries = Entries(*map(np.concatenate, zip(*found, strict=True)))
    entry_starts = np.concatenate(([0], num_entries.cumsum()))
    prompt_counts = np.zeros(len(starts) - 1, np.int32)
    # Insert each prompt before the tokens of its row, from the last row on, so that earlier offsets stay valid.
    for prompt in reversed(prompts):
        offset = int(starts[prompt.row])
        prompt_counts[prompt.row] = len(prompt.tokens)
        for part in reversed(prompt.parts):
            new = part.entries(np.ones(len(part.num_entries), bool))
            first = int(entry_starts[offset])
            entries = Entries(*(np.insert(old, first, more) for old, more in zip(entries, new, strict=True)))
            num_entries = np.insert(num_entries, offset, part.num_entries)
    return Logprobs(
        prompt_starts=_starts(prompt_counts),
        prompt_tokens=b"".join(prompt.tokens.tobytes() for prompt in prompts),
        starts=_starts(num_entries),
        ids=entries.ids.tobytes(),
        values=entries.values.tobytes(),
        ranks=entries.ranks.tobytes(),
    )


def _starts(counts: Ints) -> bytes:
    return np.concatenate(([0], counts.cumsum())).astype(np.int32).tobytes()
