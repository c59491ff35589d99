"""Plans for the tests of executors."""

from array import array

from pyllm._rust import Plan, Scheduler


def plans(number: int) -> list[Plan]:
    """Steps of one request, planned ahead of their commits."""
    scheduler = Scheduler(
        block_size=16,
        num_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=512,
        vocab_size=1000,
        enable_prefix_caching=True,
    )
    scheduler.add(0, 1, array("i", range(8)).tobytes(), seed=0, max_tokens=100)
    made = [plan for _ in range(number) if (plan := scheduler.schedule(0.0)) is not None]
    assert len(made) == number
    return made
