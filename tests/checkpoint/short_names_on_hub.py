"""`make short-names`: asks the hub about every row of the table of short names. Downloads no weights.

Prints what is wrong: a repository or file that is not there, one that needs a token, a size that is off by more than
2 %. Fails if anything is.
"""

import sys
from collections.abc import Iterable

from pyllm.checkpoint.gguf_header import part_names
from pyllm.checkpoint.hub_files import choose_gguf
from pyllm.checkpoint.model_name import HubName, ShortName, parse_hub_name, short_names
from pyllm.errors import ConfigError

TOLERANCE = 0.02


def main() -> int:
    """Check the table against the hub; return the exit code."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api, wrong, rows = HfApi(), 0, list(dict.fromkeys(short_names().values()))
    for short in rows:
        name = parse_hub_name(short.model)
        try:
            info = api.model_info(name.repository, files_metadata=True)
            trouble = trouble_of(short, name, ((file.rfilename, file.size or 0) for file in info.siblings or ()))
            trouble = trouble or ("it needs a token" if info.gated else "")
        except HfHubHTTPError as error:
            trouble = f"the hub answers {error.response.status_code}"
        wrong += bool(trouble)
        print(f"{short.name:<24} {short.model:<72} {trouble or 'ok'}", flush=True)
    print(f"{len(rows)} names, {wrong} wrong")
    return int(wrong > 0)


def trouble_of(short: ShortName, name: HubName, files: Iterable[tuple[str, int]]) -> str:
    """The fault of a row whose repository has these files, each with its size; empty if it has none."""
    sizes = dict(files)
    try:
        chosen = choose_gguf(name, sizes)
    except ConfigError as error:
        return str(error)
    size = sum(sizes[part] for part in part_names(chosen))
    is_far = abs(size - short.num_bytes) > max(TOLERANCE * size, 0.5e7)  # half of the last digit in the table
    return f"{chosen} has {size / 1e9:.2f} GB" if is_far else ""


if __name__ == "__main__":
    sys.exit(main())
