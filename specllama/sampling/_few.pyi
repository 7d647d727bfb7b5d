import numpy as np
from numpy.typing import NDArray

def law(
    row: NDArray[np.float32],
    top_k: int,
    top_p: float,
    log_min_p: float,
    temperature: float,
    /,
) -> tuple[list[int], list[float]] | None: ...
def best(row: NDArray[np.float32], /) -> tuple[int, float] | None: ...
