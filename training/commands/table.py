"""Columns of text for a terminal."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Rows in columns as wide as they need to be; those of `right` are aligned to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  " + _line(line, widths, right).rstrip() for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    pairs = enumerate(zip(cells, widths, strict=True))
    return "  ".join(cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in pairs)
