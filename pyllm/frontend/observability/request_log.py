"""Logs requests and outputs, where the server's flags ask for it. Each line has the request's id."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pyllm.config.server_settings import ServerConfig

logger = logging.getLogger(__name__)

Decode = Callable[[Sequence[int]], str]


class RequestLog:
    """The log of one API process. `decode` makes text of a prompt's tokens."""

    def __init__(self, server: ServerConfig, decode: Decode) -> None:
        self.has_requests = server.enable_log_requests
        self.has_outputs = server.enable_log_outputs
        self._most = server.max_log_len
        self._decode = decode

    def received(self, request_id: str, prompts: Sequence[Sequence[int]], params: Any) -> None:
        """Log a request's prompts and parameters; None where nothing is sampled."""
        if not self.has_requests:
            return
        for prompt in prompts:
            # A character has at most four bytes, and a token at least one.
            part = prompt if self._most is None else prompt[: 4 * self._most]
            text = self._shown(self._decode(part))
            self._log(request_id, "received: %d prompt tokens, params %s, prompt %r", len(prompt), params, text)

    def ended(self, request_id: str, choice: int, text: str, num_tokens: int, reason: str) -> None:
        """Log a choice's output."""
        if self.has_outputs:
            shown = self._shown(text)
            self._log(request_id, "choice %d ended (%s) after %d tokens: %r", choice, reason, num_tokens, shown)

    def _shown(self, text: str) -> str:
        return text if self._most is None else text[: self._most]

    def _log(self, request_id: str, layout: str, *values: object) -> None:
        logger.info(f"request %s {layout}", request_id, *values, extra={"request_id": request_id})
