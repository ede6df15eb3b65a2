"""Sizes that the kernels and their twins agree on."""


def pooled(height: int, width: int) -> tuple[int, int]:
    """What a 3×3 window with stride 2 and padding 1 makes of a picture.

    >>> pooled(84, 84), pooled(21, 21)
    ((42, 42), (11, 11))
    """
    return (height + 1) // 2, (width + 1) // 2


def power_of_2(number: int) -> int:
    """The next one.

    >>> power_of_2(48), power_of_2(64)
    (64, 64)
    """
    return 1 << (number - 1).bit_length()
