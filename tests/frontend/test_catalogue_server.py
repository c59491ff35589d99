import shutil
from pathlib import Path

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.frontend.catalogue_server import _text_parts


def test_a_tokenizer_is_made_anew_only_if_its_file_has_changed(tmp_path: Path) -> None:
    files = read_checkpoint().tokenizer
    path = tmp_path / "tokenizer.json"
    shutil.copyfile(files.path, path)
    own = msgspec.structs.replace(files, path=str(path))
    first = _text_parts(own)
    assert _text_parts(own) is first
    other_template = _text_parts(msgspec.structs.replace(own, chat_template="{{ messages }}"))
    assert other_template[1] is not None
    assert other_template[1].source == "{{ messages }}"
    shutil.copyfile(files.path, tmp_path / "new.json")
    (tmp_path / "new.json").replace(path)
    assert _text_parts(own)[0] is not first[0]
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        _text_parts(own)
