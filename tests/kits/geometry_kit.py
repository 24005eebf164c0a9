"""The geometry of rows that a test made up."""

from __future__ import annotations

import numpy as np

from isonomy.company.fair.inputs.feature_rows import FeatureRows
from isonomy.company.fair.inputs.proxy import Geometry


class PlainRows(FeatureRows):
    """Rows that are there already."""

    def __init__(self, rows: np.ndarray) -> None:
        self._kept, self.width = rows, rows.shape[1]

    def __len__(self) -> int:
        return len(self._kept)


def geometry_of(rows: np.ndarray, scale: float = 1.0) -> Geometry:
    return Geometry.of(PlainRows(rows), np.arange(len(rows)), scale)
