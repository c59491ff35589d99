"""The position embedding of sines against transformers', and that of pairs of texts."""

from typing import Any

import numpy as np
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from pyllm.families.spec import ModelSpec, NormSpec
from pyllm.workers.loaders.position_rows import POSITIONS, TYPES, MatrixReader, position_reader


def model(**fields: Any) -> ModelSpec:
    norm = NormSpec(epsilon=1e-5)
    sizes = {"vocab_size": 8, "hidden_size": 48, "max_position_embeddings": 200, "positions": 200}
    return ModelSpec(architecture="", layers=(), norm=norm, ropes=(), tie_word_embeddings=True, **sizes | fields)


def test_rows_are_those_of_transformers() -> None:
    expected = XGLMSinusoidalPositionalEmbedding.get_embedding(202, 48).numpy()[2:]
    reader, whole = position_reader(model(sinusoids=2), MatrixReader(np.empty(0))), np.empty((200, 48), np.float32)
    reader.read("position_embedding.weight", whole.shape, whole)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-5)
    rows = reader.rows("position_embedding.weight", (200, 48), slice(100, 200), slice(0, 24))
    np.testing.assert_array_equal(rows.numbers(), whole[100:, :24])
    reader.release(["position_embedding.weight"])


def test_second_texts_have_rows_of_their_own_which_include_their_type() -> None:
    generator = np.random.default_rng(0)
    files = {POSITIONS: generator.normal(size=(200, 48)), TYPES: generator.normal(size=(2, 48))}
    files = {name: numbers.astype(np.float32) for name, numbers in files.items()}

    class Files(MatrixReader):
        def read(self, name: str, shape: tuple[int, ...], out: Any, *_: Any) -> None:
            out[:] = files[name]

    spec = model(tells_texts_apart=True, token_types=2)
    rows = position_reader(spec, Files(np.empty(0))).rows(POSITIONS, (400, 48)).numbers()
    np.testing.assert_array_equal(rows[:200], files[POSITIONS] + files[TYPES][0])
    np.testing.assert_array_equal(rows[200:], files[POSITIONS] + files[TYPES][1])
    assert spec.num_positions == 400
