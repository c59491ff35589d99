"""The limits of each account: requests and tokens a minute, and concurrent requests. Knows no queue and no HTTP."""

from collections import OrderedDict
from collections.abc import Callable

from pyllm.config.api_keys import Allowance
from pyllm.frontend.shared.messages import Refused, Remaining

MINUTE = 60.0
# Accounts that are remembered; an idle one that is forgotten begins anew with full budgets.
MAX_ACCOUNTS = 10_000
# Seconds until a retry where another request has to end first, at an unknown time.
CONCURRENT_RETRY = 1.0


class Bucket:
    """A token bucket of `limit` a minute, which is also the burst: in any `t` seconds at most `limit * (1 + t / 60)`.

    Amounts that are known only afterwards are taken even below 0; that debt refills before anything else is granted.
    """

    __slots__ = ("_level", "_limit", "_updated")

    def __init__(self, limit: int, now: float) -> None:
        self._limit = limit
        self._level = float(limit)
        self._updated = now

    def wait(self, amount: int, now: float) -> float:
        """Seconds until the amount is there; 0 if it is. Infinite for more than the bucket ever holds."""
        if amount > self._limit:
            return float("inf")
        self._refill(now)
        return max(0.0, (amount - self._level) * MINUTE / self._limit)

    def take(self, amount: int, now: float) -> None:
        """Take the amount, whether it is there or not."""
        self._refill(now)
        self._level -= amount

    def remaining(self, now: float) -> Remaining:
        """The remaining amount, and the seconds until the bucket is full again."""
        self._refill(now)
        return Remaining(self._limit, max(0, int(self._level)), (self._limit - self._level) * MINUTE / self._limit)

    def _refill(self, now: float) -> None:
        if now > self._updated:
            self._level = min(self._limit, self._level + (now - self._updated) * self._limit / MINUTE)
            self._updated = now


class _Account:
    __slots__ = ("allowance", "num_running", "requests", "tokens")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.num_running = 0
        self.requests = Bucket(allowance.max_requests_per_minute, now) if allowance.max_requests_per_minute else None
        self.tokens = Bucket(allowance.max_tokens_per_minute, now) if allowance.max_tokens_per_minute else None


class RateLimits:
    """The budgets of all accounts. `clock` gives seconds.

    Every `enter` that is not refused is to be followed by one `leave`.
    """

    def __init__(self, clock: Callable[[], float], max_accounts: int = MAX_ACCOUNTS) -> None:
        self._clock = clock
        self._max_accounts = max_accounts
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # the most recently used is the last

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, name: str, allowance: Allowance) -> Refused | None:
        """Begin a request, unless its account's budget is used up for now."""
        if allowance == Allowance():
            return None
        now = self._clock()
        account = self._account(name, allowance, now)
        if account.requests is not None and (wait := account.requests.wait(1, now)):
            limit = allowance.max_requests_per_minute
            text = f"Rate limit reached: {limit} requests per minute. Please try again in {wait:.1f} s."
            return self._refused(account, "requests", text, wait, now)
        most = allowance.max_concurrent_requests
        if most and account.num_running >= most:
            text = f"{account.num_running} requests of yours are running, which is the most at once. Wait for one."
            return self._refused(account, "concurrent", text, CONCURRENT_RETRY, now)
        if account.requests is not None:
            account.requests.take(1, now)
        account.num_running += 1
        return None

    def reenter(self, name: str, allowance: Allowance) -> None:
        """Count a request that an earlier state admitted, and charged to the budgets."""
        if allowance != Allowance():
            self._account(name, allowance, self._clock()).num_running += 1

    def charge(self, name: str, num_tokens: int) -> Refused | None:
        """Take a prompt's tokens from the budget if it has as many, else nothing."""
        account = self._accounts.get(name)
        if account is None or account.tokens is None:
            return None
        now = self._clock()
        wait = account.tokens.wait(num_tokens, now)
        limit = account.allowance.max_tokens_per_minute
        if wait == float("inf"):
            text = f"The prompt has {num_tokens} tokens, and the limit is {limit} tokens per minute: it can never run."
            return self._refused(account, "tokens", text, None, now)
        if wait:
            text = (
                f"Rate limit reached: {limit} tokens per minute, and the prompt has {num_tokens}. "
                f"Please try again in {wait:.1f} s."
            )
            return self._refused(account, "tokens", text, wait, now)
        account.tokens.take(num_tokens, now)
        return None

    def leave(self, name: str, num_output_tokens: int) -> None:
        """End a request, and take its output tokens from the budget."""
        account = self._accounts.get(name)
        if account is None:
            return
        account.num_running -= 1
        if account.tokens is not None:
            account.tokens.take(num_output_tokens, self._clock())

    def remaining(self, name: str) -> tuple[Remaining | None, Remaining | None]:
        """An account's remaining budgets of requests and of tokens; None where there is no limit."""
        account = self._accounts.get(name)
        return (None, None) if account is None else _budgets(account, self._clock())

    def _account(self, name: str, allowance: Allowance, now: float) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._max_accounts:
                self._forget_one()
            account = self._accounts[name] = _Account(allowance, now)
        else:
            self._accounts.move_to_end(name)
        return account

    def _forget_one(self) -> None:
        """Forget the least recently used idle account, whose buckets are likeliest to be full. Busy ones stay."""
        idle = next((name for name, account in self._accounts.items() if not account.num_running), None)
        if idle is not None:
            del self._accounts[idle]

    def _refused(self, account: _Account, reason: str, text: str, retry_after: float | None, now: float) -> Refused:
        requests, tokens = _budgets(account, now)
        return Refused(reason, text, retry_after, requests, tokens)


def _budgets(account: _Account, now: float) -> tuple[Remaining | None, Remaining | None]:
    return (
        None if account.requests is None else account.requests.remaining(now),
        None if account.tokens is None else account.tokens.remaining(now),
    )
