"""Building blocks of kernels: processor instructions without a Python equivalent, binary search.

numba caches compiled kernels (in `__pycache__`, in ~/.cache/numba if that is not writable, or in
$NUMBA_CACHE_DIR) by the content of the kernel's own file. After changes here, or in
`raygnn.data.hashing`, also change the files of the kernels that use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_FOR_READING, _INTO_ALL_CACHES, _DATA = 0, 3, 1  # arguments of LLVM's prefetch


@intrinsic
def multiply_high(typingctx: Any, a: Any, b: Any) -> Any:
    """The high 64 bits of the product of two uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Requests the cache line of `array[index]` of a one-dimensional array, without waiting.

    Harmless outside of the array: the processor ignores invalid addresses.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        pointer_type = ir.IntType(8).as_pointer()
        pointer = builder.bitcast(builder.gep(struct.data, [args[1]]), pointer_type)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer_type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer_type], kind)
        how = [ir.Constant(number, n) for n in (_FOR_READING, _INTO_ALL_CACHES, _DATA)]
        builder.call(function, [pointer, *how])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@njit(nogil=True, cache=True, inline="always")
def first_at_least(values: np.ndarray, first: int, last: int, value: int) -> int:
    """The first position in the sorted `values[first:last]` that is not below `value`."""
    while first < last:
        middle = (first + last) >> 1
        if values[middle] < value:
            first = middle + 1
        else:
            last = middle
    return first
