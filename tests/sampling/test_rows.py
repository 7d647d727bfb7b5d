"""The largest of a row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specllama.sampling.rows import largest


@given(
    hnp.arrays(np.float32, st.integers(1, 3000), elements=st.floats(-20, 20, width=16)),
    st.integers(1, 3000),
)
def test_largest_is_exact_with_ties(values: np.ndarray, count: int) -> None:
    order = np.lexsort((np.arange(len(values)), -values))
    np.testing.assert_array_equal(largest(values, count), np.sort(order[:count]))
