"""The position embedding of sines against transformers'."""

import numpy as np
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from pyllm.workers.loaders.sinusoids import SinusoidReader


def test_rows_are_those_of_transformers() -> None:
    expected = XGLMSinusoidalPositionalEmbedding.get_embedding(202, 48).numpy()[2:]
    reader, whole = SinusoidReader(first=2), np.empty((200, 48), np.float32)
    reader.read("position_embedding.weight", whole.shape, whole)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-5)
    rows = reader.rows("position_embedding.weight", (200, 48), slice(100, 200), slice(0, 24))
    np.testing.assert_array_equal(rows.numbers(), whole[100:, :24])
    reader.release(["position_embedding.weight"])
