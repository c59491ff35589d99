"""Logs requests and outputs, where the server's flags ask for it. Each line has the request's id."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.detokenizer import TextDelta

logger = logging.getLogger(__name__)

Decode = Callable[[Sequence[int]], str]


class RequestLog:
    """The log of one API process. `decode` makes text of a prompt's tokens."""

    def __init__(self, server: ServerConfig, decode: Decode) -> None:
        self.has_requests = server.enable_log_requests
        self.has_outputs = server.enable_log_outputs
        self._most = server.max_log_len
        self._decode = decode

    def received(self, request_id: str, prompts: Sequence[Sequence[int]], params: Any, model_name: str) -> None:
        """Log a request's model or adapter, prompts and parameters; None where nothing is sampled."""
        if not self.has_requests:
            return
        for prompt in prompts:
            # A character has at most four bytes, and a token at least one.
            part = prompt if self._most is None else prompt[: 4 * self._most]
            text = self._shown(self._decode(part))
            values = (model_name, len(prompt), params, text)
            self._log(request_id, "received: model %r, %d prompt tokens, params %s, prompt %r", *values)

    def ended(self, request_id: str, choice: int, text: str, num_tokens: int, reason: str) -> None:
        """Log a choice's output."""
        if self.has_outputs:
            shown = self._shown(text)
            self._log(request_id, "choice %d ended (%s) after %d tokens: %r", choice, reason, num_tokens, shown)

    def _shown(self, text: str) -> str:
        return text if self._most is None else text[: self._most]

    def _log(self, request_id: str, layout: str, *values: object) -> None:
        logger.info(f"request %s {layout}", request_id, *values, extra={"request_id": request_id})


class OutputLog:
    """The output of one request: keeps the text of each choice, and logs it at the choice's end."""

    def __init__(self, log: RequestLog, request_id: str) -> None:
        self._log = log
        self._request_id = request_id
        self._texts: dict[int, list[str]] = {}
        self._num_tokens: dict[int, int] = {}

    def add(self, choice: int, delta: TextDelta) -> None:
        """Keep a choice's new text; log all of it once the choice has ended."""
        texts = self._texts.setdefault(choice, [])
        texts.append(delta.text)
        self._num_tokens[choice] = self._num_tokens.get(choice, 0) + delta.num_tokens
        if delta.finish_reason is not None:
            self._log.ended(self._request_id, choice, "".join(texts), self._num_tokens[choice], delta.finish_reason)
