"""Are the rows of a table in the order of the people, if nobody says whose row is whose?

Rows taken for somebody else's give a wrong answer that looks like a right one, and the budget is
spent. So whoever leaves the ids out is believed only where nothing speaks against it.
"""

from __future__ import annotations

import numpy as np

from isonomy.common.base.errors import DataError


def check_numbered(*tables: object) -> None:
    """Refuse a table (pandas) whose index is not 0, 1, 2, … in order: its rows were moved or named.

    What has no index, such as an array, passes.
    """
    for table in tables:
        index = getattr(table, "index", None)
        if index is None or callable(index):  # callable: a list's method
            continue
        names = np.asarray(index)
        if names.dtype.kind not in "iuf" or not np.array_equal(names, np.arange(len(names))):
            raise DataError(
                "the table has an index that is not 0, 1, 2, …, so its rows may be in another "
                "order than the plan's people. Say whose rows they are: ids=…, one id per row "
                "(ids=X.index if the index holds the ids). Nothing was asked."
            )
