"""Arithmetic for the sizes of launches, in plain Python: Triton's functions of these names take 2 us on the host."""


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`, which must be positive."""
    return 1 << (number - 1).bit_length()


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)
