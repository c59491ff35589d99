"""Prints the page of vLLM's flags, from the table that the command line reads: `python docs/vllm_flags.py`."""

from pyllm.config.vllm_flags import GROUPS, OTHERS, VllmFlag

_HEAD = """# vLLM's flags

`pyllm serve` reads a command line of `vllm serve`, and each flag on this page is ours, without an effect, or refused. A
flag that is not here is unknown, and ends the command. It reads short forms (`-tp`, `-O3`), underscores for hyphens,
`--no-X` for booleans, numbers such as 8k (8,000) and 8K (8,192), `--config FILE`, and nested
settings as JSON (`--speculative-config '{"method": "ngram"}'`) or with dots (`--speculative-config.method ngram`).
The command line wins over the file, which may name each flag once. No flag comes from the environment. `pyllm core`,
`chat`, `complete`, `check`, `batch`, `bench throughput` and `bench latency` take the engine's flags in the same way.

| here | |
|---|---|
| ours | the flag of vLLM, with its meaning; differences are named |
| always so | taken, and the log says at the start why it changes nothing |
| refused | ends with exit code 2, and says what to use instead |"""

_MEANINGS = {"ours": "ours", "always": "always so", "refused": "refused"}


def main() -> None:
    """Print the page as Markdown."""
    print(_HEAD)
    for group, flags in GROUPS.items():
        print(f"\n## {group.capitalize()}\n\n| flag | here | |\n|---|---|---|")
        for flag in flags:
            print(f"| {_names(flag)} | {_MEANINGS[flag.meaning]} | {_text(flag)} |")
    print("\n## Others\n\nThese have no meaning here, and are refused.\n\n| flags | |\n|---|---|")
    for text, names in OTHERS.items():
        print(f"| {', '.join(f'`--{name}`' for name in names)} | {text} |")


def _names(flag: VllmFlag) -> str:
    return ", ".join(f"`{name}`" for name in (flag.flag, *flag.aliases))


def _text(flag: VllmFlag) -> str:
    words = [flag.text] if flag.text else []
    if flag.values:
        words.append(", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in flag.values.items()))
    if flag.taken and not flag.is_boolean:
        values = ", ".join(f"`{value}`" for value in flag.taken)
        words.append(f"{values} {'is' if len(flag.taken) == 1 else 'are'} taken")
    if flag.else_text and flag.else_text != flag.text:
        other = f"`--no-{flag.name}`" if flag.is_boolean else "others"
        words.append(f"{other}: {flag.else_text}")
    return "; ".join(words).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
