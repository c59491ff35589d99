"""The layout of a plan: its sections and their offsets in the buffer. Knows no values of a plan."""

# Name and element format of each section of a plan, in order. Every section starts at a multiple of 64 bytes.
PLAN_SECTIONS: tuple[tuple[str, str], ...] = (
    ("tokens", "i"),  # -1: the slot's last sampled token
    ("positions", "i"),
    ("slot_mapping", "i"),  # block * block_size + offset, groups * tokens: one group after another
    ("query_starts", "i"),  # rows + 1
    ("sequence_lengths", "i"),  # context, this step's tokens included
    ("slots", "i"),
    ("logits_rows", "i"),  # indices into tokens: a row that forks repeats one, a row with drafts has several
    ("sampled_starts", "i"),  # rows + 1
    ("uniforms", "f"),
    ("table_slots", "i"),  # group * max_num_seqs + slot; block_tables[table_slot][table_index] = table_block
    ("table_indices", "i"),
    ("table_blocks", "i"),
    ("block_copies", "i"),  # (source, destination) pairs
    ("swaps", "i"),  # (direction, device block, host block) triples
    ("slot_copies", "i"),  # (source, destination) pairs
    ("slot_inits", "i"),
    ("sampling_starts", "i"),  # slot initialisations + 1
    ("sampling", "B"),  # one encoded `Sampling` per slot initialisation
    ("history_starts", "i"),  # slot initialisations + 1
    ("histories", "i"),  # all known tokens, prompt and output, of a stateful request
    ("prompt_lengths", "i"),  # one per slot initialisation
    ("state_sources", "i"),  # rows, of a model with states: the one a row reads; -1: its sequence begins
    ("state_destinations", "i"),  # rows: the one it writes, in the order of the rows
    ("state_swaps", "i"),  # (direction, state, host state) triples
    ("swap_names", "B"),  # per swap to the host: hash, group and index in the chain (uint32), or zeros and NO_GROUP
    (
        "state_swap_names",
        "B",
    ),  # per state swap to the host, likewise: a state has the name of the block that ends there
    ("adapter_slots", "i"),  # one per slot initialisation, with `max_loras`: the adapter's slot of the device; -1: none
    ("adapter_loads", "i"),  # (slot of the device, adapter's number) pairs
)

PLAN_ALIGNMENT = 64

SWAP_NAME_SIZE = 40  # bytes
NO_GROUP = 2**32 - 1  # for a block that cannot be found by its name


def plan_offsets(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offset of each section of a plan, and after them the plan's size in bytes."""
    offsets = []
    end = 0
    for (_, element), count in zip(PLAN_SECTIONS, counts, strict=True):
        start = -(-end // PLAN_ALIGNMENT) * PLAN_ALIGNMENT
        offsets.append(start)
        end = start + count * (1 if element == "B" else 4)
    return (*offsets, end)
