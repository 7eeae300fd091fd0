"""Which operations on which types the device can run, and why not where it cannot.

From what the vendor's public compiler headers, operator library and kernels show: there is no
64-bit arithmetic, no complex numbers, no fp8 below the next generation, no way to call the host,
and collectives reduce by sum, product, minimum or maximum. Operations without a counterpart that
can be written with those that have one (sort, case, while, count_leading_zeros ...) are accepted:
docs/gcu.md says how. Nothing here was checked on hardware.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from pjrt_gcu.program import Operation

NO_64_BIT = "the device has no 64-bit arithmetic; use 32 bits"
NO_FP8 = "this generation has no fp8 arithmetic; use int8 or 16-bit floats"
NO_4_BIT = "there is no 4-bit type; pack two values into a uint8"
REFUSED_TYPES = {
    **dict.fromkeys(("i64", "ui64", "f64"), NO_64_BIT),
    **dict.fromkeys(("complex<f32>", "complex<f64>"), "there are no complex numbers"),
    **dict.fromkeys(("i4", "ui4", "i2", "ui2"), NO_4_BIT),
}
NO_DYNAMIC_SHAPE = "shapes must be known when a program is compiled"
NO_HOST = "a program cannot call the host while it runs"
REFUSED_OPERATIONS = {
    "fft": "there is no Fourier transform",
    "triangular_solve": "there is no triangular solve",
    "rng_bit_generator": "there is no generator with an explicit state; use threefry keys",
    **dict.fromkeys(("infeed", "outfeed", "send", "recv"), NO_HOST),
    **dict.fromkeys(
        (
            "dynamic_broadcast_in_dim",
            "dynamic_conv",
            "dynamic_gather",
            "dynamic_iota",
            "dynamic_pad",
            "dynamic_reshape",
            "get_dimension_size",
            "real_dynamic_slice",
            "set_dimension_size",
        ),
        NO_DYNAMIC_SHAPE,
    ),
    **dict.fromkeys(("uniform_quantize", "uniform_dequantize"), "there are no quantised types"),
}
# Custom calls that only steer the compiler.
ANNOTATIONS = {
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "LayoutConstraint",
}
REDUCTIONS = {"add", "multiply", "maximum", "minimum", "and", "or"}  # and, or: of booleans


@dataclass(frozen=True)
class Refusal:
    """An operation that the device cannot run."""

    operation: Operation
    reason: str

    def __str__(self) -> str:
        name = self.operation.name
        if self.operation.detail:
            name += f" ({self.operation.detail})"
        types = ", ".join(self.operation.types)
        where = f" at {self.operation.source}" if self.operation.source else ""
        return f"{name} of {types or 'no array'}{where}: {self.reason}"


def refusals(operations: Iterable[Operation], kernels: Set[str]) -> list[Refusal]:
    """What cannot run, in the program's order. `kernels` are the custom calls that the driver has
    functions for.
    """
    found = []
    for operation in operations:
        reason = reason_against(operation, kernels)
        if reason is not None:
            found.append(Refusal(operation, reason))
    return found


def reason_against(operation: Operation, kernels: Set[str]) -> str | None:
    """Why the device cannot run an operation, None = it can."""
    for kind in operation.types:
        if reason := REFUSED_TYPES.get(kind, NO_FP8 if kind.startswith("f8") else None):
            return reason
    if operation.name == "custom_call":
        if "callback" in operation.detail:
            return NO_HOST
        if operation.detail not in ANNOTATIONS | kernels:
            return "the driver has no function of this name"
    if operation.name in ("all_reduce", "reduce_scatter") and operation.detail not in REDUCTIONS:
        return f"collectives reduce by {', '.join(sorted(REDUCTIONS))}"
    return REFUSED_OPERATIONS.get(operation.name)
