"""A connector with hooks around each layer's attention, on a real model: each layer of each step calls them."""

from typing import Any, NamedTuple

from pyllm import SamplingParams
from tests import in_process
from tests.kv_transfer import layer_connector
from tests.kv_transfer.layer_connector import CALLS, SHAPES

PROMPT = list(range(1, 200))
NUM_TOKENS, LAYERS, NUM_BLOCKS, KV_HEADS = 8, 2, 64, 3
A_STEP = [(call, str(layer)) for layer in range(LAYERS) for call in ("wait_for_layer_load", "save_kv_layer")]


class Run(NamedTuple):
    tokens: list[int]
    num_computed: int  # tokens
    num_cached: int
    num_steps: int


def run(model: str, **options: Any) -> Run:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with in_process.engine(model, dtype="float32", num_gpu_blocks_override=NUM_BLOCKS, **options) as engine:
        (output,) = outputs = in_process.generate(engine, [PROMPT], params)
        stats = engine.stats()
    (tokens,) = in_process.tokens(outputs)
    return Run(tokens, stats["num_computed_tokens"], output.num_cached_tokens or 0, stats["num_steps"])


def connector(name: str) -> dict[str, Any]:
    module = layer_connector.__name__
    return {"kv_transfer_config": {"kv_connector": name, "kv_connector_module_path": module}}


def test_each_layer_of_each_step_waits_and_saves_and_loads_are_read_by_the_step(model: str) -> None:
    layer_connector.forget()
    without = run(model)
    assert CALLS == []
    first = run(model, **connector("LayerConnector"))
    assert first == without
    # A captured step would call them once, when it is captured.
    assert first.num_steps * A_STEP == CALLS
    assert {(NUM_BLOCKS, 16, KV_HEADS, 16)} == SHAPES
    CALLS.clear()
    second = run(model, **connector("LayerConnector"))
    assert second.tokens == without.tokens
    assert second.num_computed == without.num_computed - 192, "twelve blocks were loaded, as the first layer waited"
    assert (first.num_cached, second.num_cached) == (0, 192)
    assert second.num_steps * A_STEP == CALLS


def test_a_connector_with_nothing_for_layers_is_called_for_none(model: str) -> None:
    layer_connector.forget()
    assert run(model, **connector("PlainConnector")) == run(model)
    assert CALLS == []
    assert len(layer_connector.BLOCKS) == (len(PROMPT) + NUM_TOKENS - 1) // 16
