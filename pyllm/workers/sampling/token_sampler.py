"""Samples a step's tokens: plain rows from their logits, stateful rows from edited copies.

Passes the drawn tokens to the slots. Computes no logits and sends nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyllm_kernels import LogitsEdits
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.tensors import Tensor

from pyllm.wire.messages import Sampled
from pyllm.workers.devices.device import Device, HostCopy
from pyllm.workers.devices.host import Arrived
from pyllm.workers.sampling.logprobs import LogprobRows, PromptLogprobs, columns
from pyllm.workers.sampling.pooling import PooledRows
from pyllm.workers.sampling.processed_logits import process_logits
from pyllm.workers.sampling.sampler import SamplingRows, sample
from pyllm.workers.sampling.sampling_slots import Constraint, SamplingSlots
from pyllm.workers.step.batch import Batch

if TYPE_CHECKING:
    from pyllm.workers.grammar.token_masks import Mask

# Seconds that a step waits for masks: one deadline for all its rows. Rows whose mask is late are skipped in this step.
PATIENCE = 0.01
# Seconds between two tries to begin a grammar that was put off.
RETRY_SECONDS = 1.0

Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.signedinteger]

# States of a row from `LogitsStates.catch_up`.
_READY, _STALE = 1, 2
# The batch of samples for log-probabilities if requests name tokens to score: each sample copies its logits.
_NAMED_AT_ONCE = 64


@dataclass(slots=True)
class Changes:
    """The edits of a step's stateful rows: K copies of logits, each of which may be sampled several times."""

    status: npt.NDArray[np.int8]  # [rows], from `LogitsStates.catch_up`; rows that are not ready are stale
    simple: npt.NDArray[np.bool_]  # [rows], with one position and only numeric edits
    origins: Ints  # [positions], the copy to sample; -1: the row's own logits, -2: nothing is drawn
    failures: dict[int, str] = field(default_factory=dict)  # errors that end requests, by row
    faults: list[int] = field(default_factory=list)  # failed rows whose request is not to blame
    parameters: dict[int, str] = field(default_factory=dict)  # the parameter to blame, by row, if it is known
    slots: list[int] = field(default_factory=list)  # [K]
    logits_rows: list[int] = field(default_factory=list)  # [K]
    drafts: list[list[int]] = field(default_factory=list)  # [K], the unverified tokens before this position
    masks: "list[Mask]" = field(default_factory=list)
    mask_rows: list[int] = field(default_factory=list)  # [K], -1: none
    copies: Tensor | None = None  # float32 [K, vocab_size], until they are scored

    def add(self, slots: list[int], logits_rows: list[int]) -> None:
        """Add copies without drafts and masks."""
        self.slots += slots
        self.logits_rows += logits_rows
        self.drafts += [[]] * len(slots)
        self.mask_rows += [-1] * len(slots)


@dataclass(slots=True)
class Draw:
    """The tokens of one step, which may still be on their way to the host; negative if none could be drawn."""

    step: int
    batch: Batch
    tokens: HostCopy = field(default_factory=lambda: Arrived(np.empty(0, np.int32)))
    changes: Changes | None = None  # None: no row is stateful
    logprobs: list[LogprobRows] = field(default_factory=list)
    wanted: Ints | None = None  # the position of each of `logprobs`; repeated for each named token
    prompts: list[PromptLogprobs] = field(default_factory=list)
    pooled: PooledRows | None = None
    sampled: Sampled | None = None  # once it is finished

    def is_done(self) -> bool:
        """Whether finishing would not wait."""
        rows = [part for prompt in self.prompts for part in prompt.parts] + self.logprobs
        pooled = self.pooled is None or self.pooled.is_done()
        return self.sampled is not None or (pooled and self.tokens.is_done() and all(one.is_done() for one in rows))


class TokenSampler:
    """The sampler of the rank that samples. Finish draws in the order in which you make them.

    Log-probabilities of drawn tokens are those of the model, or with `processed_logprobs` those of the draw.
    """

    def __init__(
        self,
        slots: SamplingSlots,
        device: Device,
        clock: Callable[[], float] = time.monotonic,
        *,
        processed_logprobs: bool = False,
    ) -> None:
        self._slots = slots
        self._processed_logprobs = processed_logprobs
        self.device = device
        self._clock = clock
        self._last: Draw | None = None
        # On a CPU each step reuses this memory: allocating takes longer than filling it.
        self._copies: Tensor = device.empty((0, 0), "float32")

    def follow(self, batch: Batch) -> None:
        """Update the slots with the tokens of the last draw, then with the plan."""
        if self._last is not None and self._last.changes is not None:
            self.finish(self._last)
        self._slots.apply(batch)

    def draw(self, step: int, batch: Batch, logits: Tensor, rows: Indices) -> tuple[Tensor, Draw]:
        """Choose a token for each sampled position.

        `logits` is [U, vocab_size]; `rows` [S] is the row of logits of each position. Returns the tokens, int32 [S] on
        the device, 0 if none could be drawn.
        """
        slots = np.repeat(batch.host.slots, np.diff(batch.host.sampled_starts))
        changes = self._changes(batch, rows) if self._slots.has_state[batch.host.slots].any() else None
        if changes is None:
            tokens = self._sample(batch, slots, logits, rows, np.arange(len(slots)))
        else:
            tokens = self.device.zeros((len(slots),), "int32")
            origins = changes.origins
            if len(plain := np.flatnonzero(origins == -1)):
                tokens[self._tensor(plain)] = self._sample(batch, slots, logits, rows, plain)
            if len(changed := np.flatnonzero(origins >= 0)):
                copies = self._changed_logits(batch, changes, logits)
                tokens[self._tensor(changed)] = self._sample(batch, slots, copies, origins, changed)
                if self._processed_logprobs:
                    changes.copies = copies
        draw = self._last = Draw(step, batch, self.device.host_copy(tokens), changes)
        tokens = tokens.clip(min=0)
        self._score(draw, slots, logits, rows, tokens)
        return tokens, draw

    def plain_rows(self, batch: Batch) -> SamplingRows | None:
        """The parameters of each sampled position; None if a row changes logits or needs log-probabilities.

        The result is the same on all ranks.
        """
        host = batch.host
        slots = np.repeat(host.slots, np.diff(host.sampled_starts))
        if self._slots.changes_logits[host.slots].any() or (self._slots.num_logprobs[slots] >= 0).any():
            return None
        return self._slots.rows(slots)

    def drawn(self, step: int, batch: Batch, tokens: Tensor) -> Draw:
        """The draw for plain rows from chosen tokens, int32 [S] on the device, -1 if none could be drawn."""
        draw = self._last = Draw(step, batch, self.device.host_copy(tokens))
        return draw

    def prompt_part(self, logits: Tensor, tokens: Ints, num_top: int) -> LogprobRows:
        """Log-probabilities of prompt tokens [M], from the logits [M, vocab_size] of the positions before them."""
        rows = np.arange(len(tokens), dtype=np.int32)
        return self._logprobs(logits, rows, self._tensor(tokens), np.full(len(tokens), num_top, np.int32))

    def finish(self, draw: Draw) -> Sampled:
        """Wait for a draw's tokens, and pass them to the slots."""
        if draw.sampled is None:
            draw.sampled = self._finish(draw)
        return draw.sampled

    def _score(self, draw: Draw, slots: Ints, logits: Tensor, rows: Indices, tokens: Tensor) -> None:
        """Add log-probabilities to a draw for the positions that need them; each position's own token comes first."""
        num_top = self._slots.num_logprobs[slots]
        positions = np.flatnonzero(num_top >= 0).astype(np.int32)
        if not len(positions):
            return
        chosen, at_once = tokens[self._tensor(positions)], len(positions)
        if named := self._slots.logprob_tokens:
            asked = [[-1, *named.get(slot, ())] for slot in slots[positions].tolist()]
            positions = np.repeat(positions, list(map(len, asked)))
            given = np.concatenate(asked).astype(np.int32)
            num_top = np.where(given < 0, num_top[positions], 0)
            own = np.flatnonzero(given < 0)
            chosen = self._tensor(given.copy())
            chosen[self._tensor(own)] = tokens[self._tensor(positions[own])]
            at_once = _NAMED_AT_ONCE
        else:
            num_top = num_top[positions]
        draw.wanted = positions
        of = rows[positions].astype(np.int32)
        if self._processed_logprobs:
            each, places = np.unique(positions, return_inverse=True)
            unedited = logits[self._tensor(rows[each].astype(np.int32))]
            logits, of = self._processed(draw, unedited, slots, each, tokens), places.astype(np.int32)
        for start in range(0, len(positions), at_once):
            some = slice(start, start + at_once)
            draw.logprobs.append(self._logprobs(logits, of[some], chosen[some], num_top[some]))

    def _processed(self, draw: Draw, unedited: Tensor, slots: Ints, positions: Ints, tokens: Tensor) -> Tensor:
        """The logits [M, vocab_size] of `positions` [M] after all that changes them for the draw, in float32."""
        found = self.device.empty(tuple(unedited.shape), "float32")
        found[...] = unedited
        if (changes := draw.changes) is not None and changes.copies is not None:
            origins = changes.origins[positions]
            changed = np.flatnonzero(origins >= 0)
            found[self._tensor(changed)] = changes.copies[self._tensor(origins[changed])]
            changes.copies = None
        process_logits(found, self._slots.rows(slots[positions]), tokens[self._tensor(positions)], self.device)
        return found

    def _sample(self, batch: Batch, slots: Ints, logits: Tensor, rows: Indices, positions: Indices) -> Tensor:
        """Sample a token for some of the positions, each from its row of logits."""
        uniforms = batch.device.uniforms
        if len(positions) < len(slots):
            slots, rows, uniforms = slots[positions], rows[positions], uniforms[self._tensor(positions)]
        each_once = len(rows) == len(logits) and bool((rows == np.arange(len(rows))).all())
        return sample(logits, self._slots.rows(slots), uniforms, self.device, None if each_once else rows)

    def _changes(self, batch: Batch, rows: Indices) -> Changes | None:
        host = batch.host
        starts = host.sampled_starts
        known = self._slots.states.catch_up(
            host.slots, host.query_starts, host.sequence_lengths, host.tokens, starts, host.logits_rows
        )
        status = np.frombuffer(known, np.int8)
        if not status.any():
            return None
        simple = (status == _READY) & (np.diff(starts) == 1) & ~self._slots.is_constrained[host.slots]
        changes = Changes(status, simple, np.full(len(rows), -1, np.int32))
        # Most rows are simple: handle them all at once.
        first = starts[:-1][simple]
        changes.origins[first] = np.arange(len(first))
        changes.add(host.slots[simple].tolist(), rows[first].tolist())
        others = np.flatnonzero((status > 0) & ~simple).tolist()
        self._follow(host.slots[others].tolist())
        deadline = self._clock() + PATIENCE
        for row in others:
            positions = slice(int(starts[row]), int(starts[row + 1]))
            num_before = len(changes.slots)
            if status[row] == _READY and self._change(batch, changes, row, rows[positions], deadline):
                is_fork = len(changes.slots) == num_before + 1
                changes.origins[positions] = num_before if is_fork else np.arange(num_before, len(changes.slots))
            else:
                changes.origins[positions] = -2
                status[row] = _STALE
        return changes

    def _follow(self, slots: list[int]) -> None:
        """Pass the plan's tokens to all grammars before waiting for any of them."""
        for slot in slots if self._slots.constraints else ():
            constraint = self._slots.constraints.get(slot)
            if constraint is None or constraint.grammar is None:
                continue
            last = constraint.num_consumed - 1
            known = self._slots.known_tokens(slot, last)
            if constraint.grammar.is_put_off:
                if self._clock() >= constraint.retry_at:
                    constraint.retry_at = self._clock() + RETRY_SECONDS
                    self._slots.begin_grammar(constraint, self._slots.known_tokens(slot, 0))
            elif not len(known) or known[0] != constraint.last_consumed:
                self._slots.begin_grammar(constraint, self._slots.known_tokens(slot, 0))
            elif len(known) > 1:
                self._consume(constraint, known[1:].tolist())

    def _change(self, batch: Batch, changes: Changes, row: int, logits_rows: Indices, deadline: float) -> bool:
        """Add a row's copies of logits; False if it cannot be sampled in this step."""
        slot = int(batch.host.slots[row])
        constraint = self._slots.constraints.get(slot)
        is_fork = bool(logits_rows[-1] == logits_rows[0])
        # A plugin draws once from each copy.
        has_plugin = constraint is not None and constraint.sampler is not None
        num_copies = 1 if is_fork and not has_plugin else len(logits_rows)
        drafts = [] if is_fork else _drafts(batch, row, num_copies - 1)
        masks: list[Mask] | None = []
        if constraint is not None:
            masks = self._masks(changes, constraint, row, drafts, deadline)
            if masks is None:
                return False
        num_before = len(changes.slots)
        changes.add([slot] * num_copies, logits_rows[:num_copies].tolist())
        changes.drafts[num_before:] = [drafts[:index] for index in range(num_copies)]
        if masks:
            changes.mask_rows[num_before:] = range(len(changes.masks), len(changes.masks) + num_copies)
            # Tokens after a forbidden draft are discarded: any mask will do.
            changes.masks += [masks[min(index, len(masks) - 1)] for index in range(num_copies)]
        return True

    def _masks(
        self, changes: Changes, constraint: Constraint, row: int, drafts: list[int], deadline: float
    ) -> "list[Mask] | None":
        """The masks of allowed tokens for a row's positions, [] for all tokens; None if not ready or failed."""
        allowed, grammar = constraint.allowed, constraint.grammar
        failure = constraint.failure
        masks = [] if allowed is None else [allowed]
        if grammar is not None and not failure:
            if not grammar.wait(max(0.0, deadline - self._clock())) or grammar.is_put_off:
                return None
            failure = grammar.error
            if failure:
                changes.parameters[row] = "structured_outputs"
            else:
                masks = [grammar.mask, *(self._slots.grammars().masks_after(grammar, drafts) if drafts else ())]
                masks = masks if allowed is None else [mask & allowed for mask in masks]
        if failure:
            changes.failures[row] = failure
            return None
        return masks

    def _changed_logits(self, batch: Batch, changes: Changes, logits: Tensor) -> Tensor:
        """The edited copies, float32 [K, vocab_size], before the filters."""
        slots = np.array(changes.slots, np.int32)
        starts = np.cumsum([0, *map(len, changes.drafts)], dtype=np.int32)
        drafts = np.array([token for drafts in changes.drafts for token in drafts], np.int32)
        edits = LogitsEdits.from_columns(self._slots.states.edits(slots, starts, drafts)).moved(
            self.device.all_from_host
        )
        masks = np.concatenate(changes.masks) if changes.masks else np.zeros((0, 1), np.int32)
        logits_rows, mask_rows = (np.array(rows, np.int32) for rows in (changes.logits_rows, changes.mask_rows))
        out = None
        if self.device.type == "cpu":
            if len(slots) > len(self._copies):
                self._copies = self.device.empty((len(slots), logits.shape[1]), "float32")
            out = self._copies[: len(slots)]
        changed = edit_logits(
            logits, self._tensor(logits_rows), edits, self._tensor(mask_rows), self._tensor(masks), out=out
        )
        for index, slot in enumerate(changes.slots if self._slots.constraints else ()):
            constraint = self._slots.constraints.get(slot)
            if constraint is not None and (constraint.processors or constraint.sampler is not None):
                self._process(batch, changes, constraint, index, changed[index])
        return changed

    def _process(self, batch: Batch, changes: Changes, constraint: Constraint, index: int, logits: Tensor) -> None:
        """Run a request's logits processors and its sampler on one copy; an error ends this request only."""
        slot = changes.slots[index]
        tokens = np.append(self._slots.known_tokens(slot, 0), np.array(changes.drafts[index], np.int32))
        prompt, output = np.split(tokens, [constraint.num_prompt_tokens])
        try:
            for processor in constraint.processors:
                processed = processor(prompt, output, logits)
                if processed.shape != logits.shape:
                    raise ValueError(f"it gave logits of shape {tuple(processed.shape)}, not {tuple(logits.shape)}")
                logits[...] = processed
            if constraint.sampler is not None:
                position = int(np.flatnonzero(changes.origins == index)[0])
                token = constraint.sampler(prompt, output, logits, float(batch.host.uniforms[position]))
                _leave_only(logits, token)
        except Exception as error:  # noqa: BLE001 - it is code of another package
            row = int(np.flatnonzero(batch.host.slots == slot)[0])
            changes.failures[row] = f"a logits processor or sampler failed: {type(error).__name__}: {error}"
            changes.faults.append(row)

    def _logprobs(self, logits: Tensor, rows: Ints, chosen: Tensor, num_top: Ints) -> LogprobRows:
        ids, values, ranks = logprobs(logits, self._tensor(rows), chosen, int(num_top.max()))
        return LogprobRows(num_top + 1, *map(self.device.host_copy, (ids, values, ranks)))

    def _finish(self, draw: Draw) -> Sampled:
        tokens, starts = draw.tokens.wait(), draw.batch.host.sampled_starts
        embeddings = None if draw.pooled is None else draw.pooled.columns(draw.batch.num_rows)
        if draw.changes is None and not draw.logprobs and not draw.prompts and tokens.min(initial=0) >= 0:
            return Sampled(draw.step, starts.tobytes(), tokens.tobytes(), embeddings=embeddings)
        kept = np.ones(len(tokens), bool)
        forced: dict[int, list[int]] = {}
        failures = {} if draw.changes is None else draw.changes.failures
        faults = [] if draw.changes is None else draw.changes.faults
        if len(empty := np.flatnonzero(tokens < 0)):
            tokens = np.maximum(tokens, 0)
            for row in np.unique(np.searchsorted(starts, empty, side="right") - 1).tolist():
                if row in failures:
                    continue
                if draw.changes is not None and draw.changes.status[row] == _READY:
                    failures[row] = "no token is left to choose from: the request excludes all that it allows"
                else:
                    failures[row] = "the model's logits are not numbers"
                    faults.append(row)
        if draw.changes is not None:
            forced = self._advance_slots(draw.batch, draw.changes, tokens, kept)
        num_kept = np.concatenate(([0], kept.cumsum()))
        reported = num_kept[starts].astype(np.int32)
        positions = np.where(kept, num_kept[:-1], -1)
        tokens = tokens[kept]
        if forced:
            ends = np.repeat(reported[[row + 1 for row in forced]], [len(more) for more in forced.values()])
            tokens = np.insert(tokens, ends, np.concatenate(list(forced.values())))
            positions += np.where(kept, np.searchsorted(ends, positions, side="right"), 0)
            for row, more in forced.items():
                reported[row + 1 :] += len(more)
        logprobs = None
        if draw.logprobs or draw.prompts:
            of = np.zeros(0, np.int64) if draw.wanted is None else positions[draw.wanted]
            logprobs = columns(reported, of, draw.logprobs, draw.prompts)
        packed = tokens.astype(np.int32).tobytes()
        parameters = {} if draw.changes is None else draw.changes.parameters
        return Sampled(draw.step, reported.tobytes(), packed, logprobs, failures, tuple(faults), parameters, embeddings)

    def _advance_slots(
        self, batch: Batch, changes: Changes, tokens: Ints, kept: npt.NDArray[np.bool_]
    ) -> dict[int, list[int]]:
        """Push the drawn tokens to the slots, for the next step; drafts count up to the first mismatch.

        Clears `kept` [positions] for discarded tokens, and returns the tokens that grammars force, by row.
        """
        host, starts, status = batch.host, batch.host.sampled_starts, changes.status
        forced: dict[int, list[int]] = {}
        simple = changes.simple
        simple[list(changes.failures)] = False
        slots: list[int] = host.slots[simple].tolist()
        pushed: list[list[int]] = tokens[starts[:-1][simple], None].tolist()
        for row in np.flatnonzero((status > 0) & ~simple).tolist():
            positions = slice(int(starts[row]), int(starts[row + 1]))
            if changes.status[row] == _STALE or row in changes.failures:
                kept[positions] = False
                continue
            slot, drawn = int(host.slots[row]), tokens[positions].tolist()
            if len(drawn) > 1:
                if host.logits_rows[positions.start] == host.logits_rows[positions.stop - 1]:
                    continue  # The samples of a fork: the next plan assigns them to slots.
                drafts = _drafts(batch, row, len(drawn) - 1)
                num_accepted = next((i for i, draft in enumerate(drafts) if draft != drawn[i]), len(drafts))
                kept[positions.start + num_accepted + 1 : positions.stop] = False
                drawn = drawn[: num_accepted + 1]
            constraint = self._slots.constraints.get(slot)
            if constraint is not None and constraint.grammar is not None:
                if len(drawn) == 1 and constraint.may_jump and (more := constraint.grammar.forced[1:]):
                    forced[row] = more
                    drawn += more
                self._consume(constraint, drawn)
            slots.append(slot)
            pushed.append(drawn)
        ends = np.cumsum([0, *map(len, pushed)], dtype=np.int32)
        flat = np.array([token for drawn in pushed for token in drawn], np.int32)
        self._slots.states.push(np.array(slots, np.int32), ends, flat)
        return forced

    def _consume(self, constraint: Constraint, tokens: list[int]) -> None:
        assert constraint.grammar is not None
        constraint.num_consumed += len(tokens)
        constraint.last_consumed = tokens[-1]
        self._slots.grammars().consume(constraint.grammar, tokens)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return self.device.from_host(array)


def _leave_only(logits: Tensor, token: int) -> None:
    """Exclude all tokens of logits [vocab_size] but the chosen one.

    Raises:
        ValueError: there is no such token, or it is excluded.
    """
    if not 0 <= token < len(logits) or logits[token] == -np.inf:
        raise ValueError(f"it chose token {token}, which the request excludes or the vocabulary has not")
    logits[...] = -np.inf
    logits[token] = 0.0


def _drafts(batch: Batch, row: int, num_drafts: int) -> list[int]:
    """A row's last `num_drafts` tokens."""
    end = int(batch.host.query_starts[row + 1])
    drafts: list[int] = batch.host.tokens[end - num_drafts : end].tolist()
    return drafts
