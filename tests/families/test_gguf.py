"""Every family from a GGUF file that llama.cpp's converter wrote, against transformers and llama.cpp's own logits."""

import numpy as np
import pytest

from tests.families.record_gguf import FAMILIES, FOLDER, LENGTHS, LOGPROBS
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import PROMPT, oracle
from tests.plans import Row
from tests.workers.engine import loaded_runner

RECORDED = np.load(LOGPROBS)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_and_of_llama_cpp(family: str) -> None:
    sequences = Sequences(loaded_runner(str(FOLDER / f"{family}.gguf"), num_blocks=256, max_model_len=128))
    sequences.start(0)
    logits = sequences.logits(Row(0, PROMPT))[0]
    np.testing.assert_allclose(logits, expected_logits(oracle(family)), rtol=1e-4, atol=1e-4)
    # llama.cpp has windows of Phi-3 "currently disabled": it sees what transformers and we do not.
    lengths = LENGTHS[:1] if family == "phi3" else LENGTHS
    last = logits[[length - 1 for length in lengths]]
    logprobs = last - np.logaddexp.reduce(last, axis=-1, keepdims=True)
    # llama.cpp adds up in another order, and rounds some of what it multiplies.
    np.testing.assert_allclose(logprobs, RECORDED[family][: len(lengths)], rtol=0, atol=5e-3, equal_nan=False)
