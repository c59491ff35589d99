"""Servers with a KV store that are killed while conversations come back to them.

Some of the kills; `python -m tests.e2e.kill_stores` has them all.
"""

import os

import pytest

from tests.e2e.kill_stores import run


@pytest.mark.full
def test_servers_on_one_folder_killed() -> None:
    with open(os.devnull, "w") as log_file:
        record = run(3, 5, log_file, conversations=8)
    print(record)
    assert not any(record["must_be_0"].values()), record
    assert sum(record["kills"].values()) == 3
    assert record["figures"]["num_kv_loaded_tokens"] > 0
