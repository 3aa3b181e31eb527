"""Kernels compiled for compute capability 9.0, which needs no GPU."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import triton


def compiled(
    function: Any,
    tensors: Mapping[str, str],
    numbers: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    divisible: Iterable[str] = (),
) -> Any:
    """A kernel for an H100.

    Args:
        tensors, numbers: Triton's names of the types of arguments.
        divisible: numbers that are multiples of 16; the addresses of tensors always are.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    source = ASTSource(
        fn=function,
        signature={**tensors, **numbers, **dict.fromkeys(constants, "constexpr")},
        constexprs={(names.index(key),): value for key, value in constants.items()},
        attrs={(names.index(key),): [["tt.divisibility", 16]] for key in (*tensors, *divisible)},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(options))


def bytes_of_stack(kernel: Any, folder: Path) -> int:
    """Registers that do not suffice are spilled to a stack of so many bytes."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", said)
    return int(found)
