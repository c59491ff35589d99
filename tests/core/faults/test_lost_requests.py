"""What a core tells of requests that were lost with another one, until they are cleared."""

from array import array

from pyllm.core.load_reports import INTERVAL
from pyllm.wire.messages import CLEARING_TOKENS, PROTOCOL_VERSION, Abort, Hello, LoadReport, Output
from tests.core.raw_engine import EPOCH, Engine


def listening() -> Engine:
    """A core with a client that wants load reports."""
    engine = Engine()
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True))
    return engine


def counts(engine: Engine) -> tuple[int, int]:
    """Requests, and those of them that were lost before, as was told last."""
    engine.core.beat()
    report = engine.messages(LoadReport)[-1]
    return report.num_requests, report.num_lost_before


async def test_a_request_is_a_suspect_until_it_has_had_enough_tokens_or_ended() -> None:
    engine = listening()
    engine.submit(1, [5, 6], max_tokens=40)
    output = Output(array("i", [7, 8]).tobytes(), finished=False)
    engine.submit(2, [5, 6], max_tokens=40, num_losses=1, outputs=(output,))
    engine.submit(3, [5, 6], max_tokens=40, num_losses=1, n=2)
    assert counts(engine) == (3, 2)
    engine.receive(Abort(EPOCH, 3))
    assert counts(engine) == (2, 1)
    for _ in range(CLEARING_TOKENS):
        assert counts(engine) == (2, 1)
        engine.now += INTERVAL
        await engine.core.step()
    assert counts(engine) == (2, 0)


async def test_one_that_ends_early_or_runs_alone_counts_while_it_is_there() -> None:
    engine = listening()
    engine.submit(1, [5, 6], max_tokens=2, num_losses=1)
    engine.submit(2, [5, 6], max_tokens=40, num_losses=2)
    assert counts(engine) == (2, 2)
    for _ in range(3):
        await engine.core.step()
    assert counts(engine) == (1, 1)
    await engine.run_dry()
    assert counts(engine) == (0, 0)
