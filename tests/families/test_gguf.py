"""Every family from a GGUF file that llama.cpp's converter wrote, against transformers and llama.cpp's own logits."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from pyllm_kernels.tensors import Array

from tests.families.record_gguf import FAMILIES, FOLDER, LENGTHS, LOGPROBS
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import PROMPT, oracle
from tests.plans import Row
from tests.workers.engine import loaded_runner

RECORDED = np.load(LOGPROBS)


def logits_of(path: Path) -> Array:
    sequences = Sequences(loaded_runner(str(path), num_blocks=256, max_model_len=128))
    sequences.start(0)
    return sequences.logits(Row(0, PROMPT))[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_and_of_llama_cpp(tmp_path: Path, family: str) -> None:
    logits = logits_of(FOLDER / f"{family}.gguf")
    np.testing.assert_allclose(logits, expected_logits(oracle(family)), rtol=1e-4, atol=1e-4)
    if family == "gemma3n-gguf":
        write_cutoffs_of_samples(FOLDER / f"{family}.gguf", tmp_path / "samples.gguf")
        logits = logits_of(tmp_path / "samples.gguf")
    # llama.cpp has windows of Phi-3 "currently disabled": it sees what transformers and we do not.
    lengths = LENGTHS[:1] if family == "phi3" else LENGTHS
    last = logits[[length - 1 for length in lengths]]
    logprobs = last - np.logaddexp.reduce(last, axis=-1, keepdims=True)
    # llama.cpp adds up in another order, and rounds some of what it multiplies.
    np.testing.assert_allclose(logprobs, RECORDED[family][: len(lengths)], rtol=0, atol=5e-3, equal_nan=False)


def test_older_files_have_one_matrix_of_keys_and_values(tmp_path: Path) -> None:
    path = tmp_path / "older.gguf"
    write_older_latents(FOLDER / "deepseek-v3.gguf", path)
    np.testing.assert_allclose(logits_of(path), expected_logits(oracle("deepseek-v3")), rtol=1e-4, atol=1e-4)


def write_cutoffs_of_samples(source: Path, path: Path) -> None:
    """Write a file of Gemma 3n with cutoffs as llama.cpp has them.

    Its standard deviation is that of a sample, transformers' that of all numbers: the same for a gate of usual width.
    """
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "gemma3n")
    size = reader.fields["gemma3n.feed_forward_length"].contents()
    size = size[0] if isinstance(size, list) else size
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and not name.endswith(".architecture"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = field.contents()
            if name.endswith("activation_sparsity_scale"):
                value = [number * (size / (size - 1)) ** 0.5 for number in value]
            writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_older_latents(source: Path, path: Path) -> None:
    """Write a file of deepseek2 as llama.cpp's converter wrote it before it split the matrix for latent attention."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "deepseek2")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and not name.endswith(("_mla", ".architecture")):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = reader.fields.get(f"{name}_mla", field).contents()
            writer.add_key_value(name, value, field.types[0], inner)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    for name, data in tensors.items():
        if ".attn_k_b." in name:
            values = tensors[name.replace("attn_k_b", "attn_v_b")]
            matrices = np.concatenate((data.swapaxes(1, 2), values), axis=1)  # [heads, key and value, latent]
            writer.add_tensor(name.replace("attn_k_b", "attn_kv_b"), matrices.reshape(-1, matrices.shape[-1]).copy())
        elif ".attn_v_b." not in name:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
