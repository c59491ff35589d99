"""Between the host's arrays and tensors of any device. Knows no op."""

import numpy as np

from pyllm_kernels.tensors import Array, Tensor, is_array


def fill(to: Tensor, array: Array) -> None:
    """Copy an array of the host into a tensor, rounded to its dtype."""
    if is_array(to):
        to[...] = array
        return
    from pyllm_kernels.torch_bridge import as_tensor

    to.copy_(as_tensor(np.ascontiguousarray(array)))


def host_array(tensor: Tensor) -> Array:
    """A tensor's memory as an array; a copy on the host of a tensor that is elsewhere."""
    if is_array(tensor):
        array: Array = tensor
        return array
    from pyllm_kernels.torch_bridge import as_array

    return as_array(tensor)
