"""sglang-router in front of two servers: it passes requests on, balances, follows a client that leaves, fails over."""

import sys
from pathlib import Path

from checks import Servers, check, main
from routed import Routed, check_answers, check_balancing, check_cancel, check_failover

ROUTER = str(Path(sys.executable).with_name("sglang-router"))


def command(port: int, other: int, workers: list[str]) -> list[str]:
    """Its command line."""
    flags = ["--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
    return [ROUTER, "launch", *flags, "--worker-urls", *workers]


@check
def answers(servers: Servers) -> None:
    with Routed(servers, command) as routed:
        check_answers(routed)


@check
def balancing(servers: Servers) -> None:
    with Routed(servers, command) as routed:
        check_balancing(routed)


@check
def balancing_by_load(servers: Servers) -> None:
    with Routed(servers, lambda *given: [*command(*given), "--policy", "power_of_two"]) as routed:
        check_answers(routed)


@check
def cancel(servers: Servers) -> None:
    with Routed(servers, command) as routed:
        check_cancel(routed)


@check
def failover(servers: Servers) -> None:
    with Routed(servers, command) as routed:
        check_failover(routed)


main()
