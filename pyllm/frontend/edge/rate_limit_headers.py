"""The remaining budgets of an account, in OpenAI's headers."""

from pyllm.frontend.edge.error_answer import Headers
from pyllm.frontend.shared.messages import Granted, Refused, Remaining


def budget_headers(answer: Granted | Refused | None) -> Headers:
    """The headers: three for each budget that has a limit."""
    if answer is None:
        return []
    return [*_headers(b"requests", answer.requests), *_headers(b"tokens", answer.tokens)]


def _headers(kind: bytes, budget: Remaining | None) -> Headers:
    if budget is None:
        return []
    return [
        (b"x-ratelimit-limit-" + kind, b"%d" % budget.limit),
        (b"x-ratelimit-remaining-" + kind, b"%d" % budget.remaining),
        (b"x-ratelimit-reset-" + kind, f"{budget.reset:.3f}s".encode()),
    ]
