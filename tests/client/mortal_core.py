"""A core that can die between any two messages, and a client's requests whose answers are known beforehand."""

from array import array
from binascii import crc32
from collections import deque
from collections.abc import Callable

from pyllm.client.columns import StartTimes
from pyllm.client.embedding import Embedding
from pyllm.client.logprobs import LogprobEntries
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import PyllmError
from pyllm.wire.messages import (
    CLEARING_TOKENS,
    RESERVATION,
    Abort,
    ClientMessage,
    FinishCode,
    Hello,
    Isolated,
    LoadReport,
    Output,
    Ready,
    Rejected,
    Reserve,
    Submit,
)
from tests.client.fake_core import MODEL, START, Entries, FakeCore, Row, deltas, embedded, told

CHUNK = 2  # tokens of a prompt that are told in one step
LOSSES = 2  # of cores in a row, which make a request suspect


def next_token(prompt: list[int], seed: int, sample: int, position: int) -> int:
    """What the model says; 0, the end of the sequence, one time out of eight."""
    drawn = crc32(repr((prompt, seed, sample, position)).encode())
    return 0 if drawn % 8 == 0 else 1 + drawn % 29


def whole_output(submit: Submit, sample: int) -> tuple[list[int], FinishCode]:
    """All that one sample of a request is given, and how it ends."""
    prompt = array("i", submit.prompt).tolist()
    tokens: list[int] = []
    while len(tokens) < submit.max_tokens:
        tokens.append(next_token(prompt, submit.seed, sample, len(tokens)))
        if tokens[-1] in array("i", submit.stop_token_ids) and len(tokens) >= submit.min_tokens:
            return tokens, FinishCode.STOP
    return tokens, FinishCode.LENGTH


class _Sequence:
    def __init__(self, submit: Submit, sample: int, num_tokens: int, num_left: int) -> None:
        self.submit = submit
        self.sample = sample
        self.num_tokens = num_tokens
        self.num_left = num_left  # of the prompt, to be told


class MortalCore(FakeCore):
    """Computes one token of each chosen sample in a `step`, and says it in `deliver`. What it says first is `Ready`.

    It refuses what the scheduler refuses, and computes by themselves, one after another, requests that several cores
    were lost with, as `Quarantine` does. `num_cached` is what it claims to have cached of every prompt.
    """

    def __init__(self, epoch: int, num_cached: int) -> None:
        super().__init__(MODEL, epoch)
        self.num_cached = num_cached
        self.said: deque[Callable[[], None]] = deque()
        self.is_deaf = False  # Messages are still in the socket when it dies.
        self.sequences: list[_Sequence] = []
        self.alone: int | None = None
        self.steps_alone = 0  # that are left to it
        self.told_alone: int | None = None  # what the client knows of that
        self._suspects: deque[int] = deque()
        self._begun: set[int] = set()  # whose output has begun, be it on a core before

    def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
        return self.is_deaf or super().send(message, *frames, identity=identity)

    def handle(self, message: ClientMessage) -> None:
        match message:
            case Hello():
                self.said.append(lambda: self.say(Ready(self.version, self.epoch, self.model, self.fingerprint)))
            case Submit() if (problem := _problem(message)) is not None:
                text = problem
                self.said.append(lambda: self.say(Rejected(message.request, "invalid", text)))
            case Submit():
                self._start(message)
            case Reserve():
                num_requests = len({each.submit.request for each in self.sequences})
                report = LoadReport(self.epoch, 0, num_requests, b"", b"", self._num_lost_before(), RESERVATION)
                self.said.append(lambda: self.say(report))
            case Abort(_, request, sample):
                self._end([each for each in self.sequences if each.submit.request == request], sample)
            case _:
                pass

    def step(self, chosen: Callable[[int], bool]) -> None:
        """Compute some of the sequences, by their places; an answer is one message."""
        self._advance()
        rows: list[Row] = []
        for place, sequence in enumerate(list(self.sequences)):
            if chosen(place) and sequence.submit.request not in self._suspects:
                rows += self._compute(sequence)
        if rows:
            self.said.append(lambda: self.say(deltas(*rows, epoch=self.epoch)))
        if self.alone in [row.request for row in rows]:
            self.steps_alone -= 1
            if not self.steps_alone:
                self._isolate(None)

    def deliver(self) -> None:
        """Let the client read the next message."""
        if self.said:
            self.said.popleft()()

    def _advance(self) -> None:
        """Let the next suspect run alone if none does."""
        live = {sequence.submit.request: sequence.submit for sequence in self.sequences}
        if self.alone is not None and self.alone not in live:
            self._isolate(None)
        while self.alone is None and self._suspects:
            request = self._suspects.popleft()
            if request in live:
                self.steps_alone = 1 if live[request].num_losses == LOSSES else CLEARING_TOKENS
                self._isolate(request)

    def _isolate(self, request: int | None) -> None:
        before, self.alone = self.alone, request

        def tell() -> None:
            self.told_alone = request
            if before is not None:
                self.say(Isolated(self.epoch, before, "over"))
            if request is not None:
                self.say(Isolated(self.epoch, request, "alone"))

        self.said.append(tell)

    def _start(self, submit: Submit) -> None:
        if submit.num_losses >= LOSSES:
            self._suspects.append(submit.request)
        num_left = len(submit.prompt) // 4 - 1 if submit.sampling.prompt_logprobs is not None else 0
        outputs = submit.outputs or (Output(b"", False),) * submit.n
        if any(output.tokens for output in outputs):
            self._begun.add(submit.request)
        for sample, output in enumerate(outputs):
            if not output.finished:
                # Those of a fresh request have one prompt, those of a resumed one compute it each.
                untold = num_left if submit.outputs or sample == 0 else 0
                self.sequences.append(_Sequence(submit, sample, len(output.tokens) // 4, untold))

    def _num_lost_before(self) -> int:
        """Those that came as such: none is cleared here before its end."""
        return len({each.submit.request for each in self.sequences if each.submit.num_losses})

    def _compute(self, sequence: _Sequence) -> list[Row]:
        submit, sample = sequence.submit, sequence.sample
        request = submit.request
        prompt = array("i", submit.prompt).tolist()
        if submit.sampling.pooling:
            self.sequences.remove(sequence)
            vector = embedded(prompt)
            return [Row(request, [], 0, 0, FinishCode.STOP, self.num_cached, embedding=vector, start=START)]
        if submit.beam_width:
            sequence.num_tokens += 1
            if sequence.num_tokens < submit.max_tokens or sequence not in self.sequences:
                return []
            self.sequences = [each for each in self.sequences if each.submit.request != request]
            outputs = [whole_output(submit, beam) for beam in range(submit.n)]
            rows = [
                Row(request, tokens, 0, beam, finish, self.num_cached, [told(token, 0) for token in tokens])
                for beam, (tokens, finish) in enumerate(outputs)
            ]
            return [rows[0]._replace(start=START), *rows[1:]]
        if sequence.num_left:
            count, left = min(CHUNK, sequence.num_left), sequence.num_left
            sequence.num_left -= count
            tokens = prompt[len(prompt) - left :][:count]
            return [Row(request, tokens, -left, sample, logprobs=[told(token, 0) for token in tokens])]
        siblings = [each for each in self.sequences if each.submit is submit]
        if not submit.outputs and any(each.num_left for each in siblings):
            return []  # They begin when their prompt is computed.
        tokens, finish = whole_output(submit, sample)
        token = tokens[sequence.num_tokens]
        offset, sequence.num_tokens = sequence.num_tokens, sequence.num_tokens + 1
        is_over = sequence.num_tokens == len(tokens)
        if is_over:
            self.sequences.remove(sequence)
        count_told = submit.sampling.logprobs
        entries: list[Entries] | None = None if count_told is None else [told(token, count_told)]
        code = finish if is_over else FinishCode.NONE
        start = None if request in self._begun else START
        self._begun.add(request)
        return [Row(request, [token], offset, sample, code, self.num_cached, entries, start=start)]

    def _end(self, sequences: list[_Sequence], sample: int) -> None:
        rows = []
        for sequence in sequences:
            if sample in (-1, sequence.sample) or sequence.submit.beam_width:
                self.sequences.remove(sequence)
                later = (each for each in self.sequences if each.submit is sequence.submit)
                heir = next((each for each in later if each.sample > sequence.sample), None)
                if heir is not None and not sequence.submit.outputs:  # It computes their prompt from now on.
                    heir.num_left += sequence.num_left
                offset = 0 if sequence.submit.beam_width else sequence.num_tokens
                rows.append(Row(sequence.submit.request, [], offset, sequence.sample, FinishCode.ABORT))
        if rows:
            self.said.append(lambda: self.say(deltas(*rows, epoch=self.epoch)))


def _problem(submit: Submit) -> str | None:
    """What the scheduler says to it, see `Request::validate`."""
    if not submit.outputs:
        return None
    if submit.sampling.pooling or submit.beam_width:
        return "outputs must be empty"
    if all(output.finished for output in submit.outputs):
        return "all samples are finished"
    if any(not output.finished and len(output.tokens) // 4 >= submit.max_tokens for output in submit.outputs):
        return "a sample has all its tokens and is not finished"
    return None


class Reader:
    """A sink that keeps what it is given, and ends a sample at `stop`, as a stop string does.

    `abort(sample)` is set once the request has an id.
    """

    def __init__(self, n: int, stop: int | None = None) -> None:
        self.stop = stop
        self.abort: Callable[[int], None]
        self.tokens: list[list[int]] = [[] for _ in range(n)]
        self.entries: list[list[LogprobEntries]] = [[] for _ in range(n)]
        self.finishes: list[FinishCode | None] = [None] * n
        self.of_prompt: list[LogprobEntries] = []
        self.cached: set[int] = set()
        self.vectors: list[array[float]] = []
        self.starts: list[tuple[StartTimes, bool]] = []  # and whether tokens were there before
        self.errors: list[PyllmError] = []

    def delta(self, index: int, delta: TokenDelta) -> None:
        sample, tokens = index, delta.tokens
        if delta.start_times is not None:
            self.starts.append((delta.start_times, any(self.tokens)))
        if self.finishes[sample] is not None:
            return  # It was ended here.
        stops = self.stop in tokens
        if self.stop is not None and stops:
            tokens = tokens[: tokens.index(self.stop) + 1]
        self.tokens[sample] += tokens
        self.entries[sample] += (delta.logprobs or [])[: len(tokens)]
        if tokens:
            self.cached.add(delta.cached_tokens)
        if stops:
            self.finishes[sample] = FinishCode.STOP
            if not delta.finish:
                self.abort(sample)
        elif delta.finish:
            self.finishes[sample] = delta.finish

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        self.of_prompt += logprobs

    def error(self, error: PyllmError) -> None:
        self.errors.append(error)

    def embedding(self, embedding: Embedding) -> None:
        self.vectors.append(embedding.values)
