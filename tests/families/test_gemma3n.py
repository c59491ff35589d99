"""Frequencies and cutoffs of Gemma 3n, from the forms that its configurations have."""

import pytest

from pyllm.errors import ConfigError
from pyllm.families import gemma3n
from pyllm.families.config import Config


def test_the_frequencies_of_older_files_of_gemma_3n_are_of_full_attention_and_of_windows() -> None:
    older = {
        "architectures": ["Gemma3nForCausalLM"],
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": None,
    }
    spec = gemma3n.read_gemma3n(Config(older))
    assert [rope.inverse_frequencies[1] for rope in spec.ropes] == pytest.approx([1e6 ** (-2 / 256), 1e4 ** (-2 / 256)])
    cutoffs = [layer.feed_forward.cutoff for layer in spec.layers if layer.feed_forward is not None]
    assert cutoffs == [*[pytest.approx(1.6448536)] * 10, *[None] * 25]
    with pytest.raises(ConfigError, match="a list of numbers from 0 to less than 1"):
        gemma3n.read_gemma3n(Config(older | {"activation_sparsity_pattern": [1.0] * 35}))
