"""A core that says its script in deltas of given sizes, so that a test decides where text is cut."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from itertools import cycle

from pyllm.wire.messages import Abort, ClientMessage, FinishCode, ModelInfo, Submit
from tests.client.fake_core import MODEL, FakeCore, Row, told


class RaggedCore(FakeCore):
    """Answers with `script(prompt, sample)`, each delta of the next of `sizes`; ends as `ScriptedCore` does."""

    def __init__(
        self, script: Callable[[list[int], int], list[int]], sizes: Sequence[int] = (1,), model: ModelInfo = MODEL
    ) -> None:
        super().__init__(model)
        self.script = script
        self.sizes = cycle(sizes)
        self.running: dict[tuple[int, int], tuple[Submit, list[int], int]] = {}

    def handle(self, message: ClientMessage) -> None:
        super().handle(message)
        if isinstance(message, Submit):
            prompt = array("i", message.prompt).tolist()
            for sample in range(message.n):
                self.running[message.request, sample] = (message, self.script(prompt, sample), 0)
            asyncio.get_running_loop().call_soon(self.step)
        elif isinstance(message, Abort):
            for key in [key for key in self.running if key[0] == message.request and message.sample in (-1, key[1])]:
                del self.running[key]
                row = Row(key[0], [], 0, key[1], FinishCode.ABORT)
                asyncio.get_running_loop().call_soon(lambda row=row: self.closed or self.say_rows(row))

    def step(self) -> None:
        """Say the next delta of every sample."""
        rows = []
        for (request, sample), (submit, tokens, offset) in list(self.running.items()):
            stop = array("i", submit.stop_token_ids)
            end = min(offset + next(self.sizes), submit.max_tokens, len(tokens))
            piece = tokens[offset:end]
            stops = [place for place, token in enumerate(piece) if token in stop]
            piece = piece[: stops[0] + 1] if stops else piece
            is_last = end == min(submit.max_tokens, len(tokens))
            finish = FinishCode.STOP if stops else FinishCode.LENGTH if is_last else FinishCode.NONE
            if finish:
                del self.running[request, sample]
            else:
                self.running[request, sample] = (submit, tokens, end)
            count = submit.sampling.logprobs
            logprobs = None if count is None else [told(token, count) for token in piece]
            rows.append(Row(request, piece, offset, sample, finish, 2, logprobs))
        if rows and not self.closed:
            self.say_rows(*rows)
        if self.running:
            asyncio.get_running_loop().call_soon(self.step)
