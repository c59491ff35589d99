"""Every family from a GGUF file that llama.cpp's converter wrote, against transformers and llama.cpp's own logits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from pyllm_kernels.tensors import Array

from pyllm.errors import ConfigError
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

    def of_sample(fields: dict[str, Any]) -> dict[str, Any]:
        name = next(name for name in fields if name.endswith("activation_sparsity_scale"))
        return fields | {name: [number * (_GATE / (_GATE - 1)) ** 0.5 for number in fields[name]]}

    write_changed(source, path, of_sample)


_GATE = 48  # features of it


def test_keys_and_values_that_no_layer_reads_are_skipped(tmp_path: Path) -> None:
    kept = [f"blk.{layer}.{name}.weight" for layer in (3, 4) for name in ("attn_k", "attn_v", "attn_k_norm")]
    write_changed(FOLDER / "gemma4.gguf", tmp_path / "kept.gguf", tensors=lambda tensors: tensors | ones(kept))
    np.testing.assert_array_equal(logits_of(tmp_path / "kept.gguf"), logits_of(FOLDER / "gemma4.gguf"))
    other = ones(["blk.4.attn_other.weight"])
    write_changed(FOLDER / "gemma4.gguf", tmp_path / "other.gguf", tensors=lambda tensors: tensors | other)
    with pytest.raises(ConfigError, match=r"1 tensors belong to no layer of Gemma4ForCausalLM: blk\.4\.attn_other"):
        logits_of(tmp_path / "other.gguf")


def ones(names: Sequence[str]) -> dict[str, Array]:
    return {name: np.ones((2, 32), np.float32) for name in names}


@pytest.mark.parametrize("family", ["llama", "qwen2.5-vl", "qwen2-moe"])
def test_what_the_converter_may_stack_is_found(tmp_path: Path, family: str) -> None:
    path = tmp_path / "fused.gguf"
    write_changed(FOLDER / f"{family}.gguf", path, tensors=fused)
    np.testing.assert_array_equal(logits_of(path), logits_of(FOLDER / f"{family}.gguf"))


def write_changed(
    source: Path,
    path: Path,
    fields: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields,
    tensors: Callable[[dict[str, Array]], dict[str, Array]] = lambda tensors: tensors,
) -> None:
    """Write a file again, with changes of the values of its fields and of its tensors."""
    reader = gguf.GGUFReader(source)
    kinds = {name: field.types for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    values = {name: reader.fields[name].contents() for name in kinds}
    writer = gguf.GGUFWriter(path, values["general.architecture"])
    for name, value in fields(values).items():
        if name != "general.architecture":
            inner = kinds[name][-1] if kinds[name][0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, kinds[name][0], inner)
    for name, data in tensors({tensor.name: tensor.data for tensor in reader.tensors}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fused(tensors: dict[str, Array]) -> dict[str, Array]:
    """What the converter stacks with `--fuse-qkv` and `--fuse-gate-up-exps`."""
    parts = (".attn_k.", ".attn_v.", ".ffn_up_exps.")
    found = {}
    for name, data in tensors.items():
        if ".attn_q." in name:
            others = [tensors[name.replace("attn_q", other)] for other in ("attn_k", "attn_v")]
            found[name.replace("attn_q", "attn_qkv")] = np.concatenate([data, *others])
        elif ".ffn_gate_exps." in name:
            both = data, tensors[name.replace("gate", "up")]
            found[name.replace("gate", "gate_up")] = np.concatenate(both, axis=1)
        elif not any(part in name for part in parts):
            found[name] = data
    return found


def write_older_latents(source: Path, path: Path) -> None:
    """Write a file of deepseek2 as llama.cpp's converter wrote it before it split the matrix for latent attention."""

    def fields(values: dict[str, Any]) -> dict[str, Any]:
        return {name: values.get(f"{name}_mla", value) for name, value in values.items() if not name.endswith("_mla")}

    def tensors(found: dict[str, Array]) -> dict[str, Array]:
        older = {name: data for name, data in found.items() if ".attn_v_b." not in name and ".attn_k_b." not in name}
        for name in [name for name in found if ".attn_k_b." in name]:
            values = found[name.replace("attn_k_b", "attn_v_b")]
            matrices = np.concatenate((found[name].swapaxes(1, 2), values), axis=1)  # [heads, key and value, latent]
            older[name.replace("attn_k_b", "attn_kv_b")] = matrices.reshape(-1, matrices.shape[-1]).copy()
        return older

    write_changed(source, path, fields, tensors)
