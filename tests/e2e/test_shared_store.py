"""Several servers on one folder of KV blocks: one loads what another has computed, nobody another model's blocks."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from pyllm import SamplingParams
from pyllm.kv_transfer.stores.disk_store import DiskStore
from tests import in_process
from tests.e2e.server import Server, until
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.full
PROMPT = list(range(1, 200))
NUM_TOKENS = 8
NUM_BLOCKS = (len(PROMPT) + NUM_TOKENS - 1) // 16  # those that are full once the answer is there
# Prompts that share a start, and prompts that share none.
MANY = [[shared] * 40 + [number, *range(number, number + 40)] for shared in (3, 4, 5) for number in range(100, 104)]


class Model(NamedTuple):
    path: str
    dtype: str


class Answer(NamedTuple):
    tokens: list[int]
    cached: int


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """A model, the same with other numbers, and one with other weights."""
    folder = tmp_path_factory.mktemp("tiny")
    path, other = write_tiny_model(folder / "model"), write_tiny_model(folder / "other", seed=1)
    return [Model(path, "float32"), Model(path, "bfloat16"), Model(other, "float32")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(scope="module")
def servers(models: list[Model], folder: Path) -> Iterator[list[Server]]:
    """Two of the first model, and one of each other; they start at the same time."""
    with ExitStack() as stack:
        started = [
            Server(path, "--dtype", dtype, "--kv-cache-dir", str(folder), "--num-gpu-blocks-override", "128")
            for path, dtype in (models[0], *models)
        ]
        yield [stack.enter_context(server) for server in started]


def ask(server: Server, prompt: list[int]) -> Answer:
    answer = server.complete(prompt, max_tokens=NUM_TOKENS, ignore_eos=True, return_token_ids=True).json()
    return Answer(answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def without_store(model: Model, prompts: Sequence[list[int]]) -> list[list[int]]:
    """The answers of an engine that has no store, one after another."""
    options = {"dtype": model.dtype, "num_gpu_blocks_override": 64, "enable_prefix_caching": False, "max_num_seqs": 1}
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with in_process.engine(model.path, **options) as engine:
        return in_process.tokens(in_process.generate(engine, prompts, params))


def wait_for_blocks(folder: Path, number: int) -> None:
    """Until the folder has so many blocks: they are written after the answer is given."""
    store = DiskStore(folder, 16 << 30)

    def are_there() -> bool:
        store.lookup([])  # looks at what others have written
        return store.stats()[0].num_blocks >= number

    until(are_there, f"{number} blocks in the store")
    store.close()


def test_one_server_loads_what_another_computed_and_no_other_models_blocks(
    servers: list[Server], models: list[Model], folder: Path
) -> None:
    ((expected,), (of_other_numbers,), (of_other_weights,)) = (without_store(model, [PROMPT]) for model in models)
    first, second, other_numbers, other_weights = servers
    assert ask(first, PROMPT) == Answer(expected, 0)
    wait_for_blocks(folder, NUM_BLOCKS)
    assert ask(second, PROMPT) == Answer(expected, 192)
    assert ask(other_numbers, PROMPT) == Answer(of_other_numbers, 0)
    assert ask(other_weights, PROMPT) == Answer(of_other_weights, 0)
    wait_for_blocks(folder, 3 * NUM_BLOCKS)


def test_servers_that_save_and_load_at_once_answer_as_one_without_a_store(
    servers: list[Server], models: list[Model]
) -> None:
    expected = without_store(models[0], MANY)
    with ThreadPoolExecutor(12) as threads:
        # The one begins where the other ends, so that each has prompts that the other has computed meanwhile.
        forwards = [threads.submit(ask, servers[0], prompt) for prompt in MANY]
        backwards = [threads.submit(ask, servers[1], prompt) for prompt in reversed(MANY)]
    assert [each.result().tokens for each in forwards] == expected
    assert [each.result().tokens for each in reversed(backwards)] == expected
