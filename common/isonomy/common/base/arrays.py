"""Plain arrays in an .npz file. Reading executes nothing and is total: arrays, or a DataError."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

# numpy parses a header as Python text, and zipfile raises RuntimeError for what is encrypted or
# compressed in a way that this Python does not know.
_UNREADABLE = (
    *(OSError, ValueError, AttributeError, EOFError, RuntimeError, SyntaxError, TypeError),
    *(ArithmeticError, LookupError, SystemError, zipfile.BadZipFile, zlib.error),
    tokenize.TokenError,
)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file by name."""
    try:
        with path.open("rb") as file:
            return arrays_in(file, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def arrays_in(file: BinaryIO, where: object) -> dict[str, NDArray[Any]]:
    """Return all arrays of an open file by name. Texts hold characters that exist."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        for array in arrays.values():
            if array.dtype.kind == "U":
                array.tolist()  # SystemError for a number that is no character
        return arrays
    except MemoryError:
        raise DataError(f"{where} names arrays that do not fit into memory") from None
    except _UNREADABLE:
        raise DataError(f"{where} is not an .npz file of plain arrays") from None
