"""Reads a program as a compiler receives it: which operations on which types, how often each runs,
where it comes from, and how many floating-point operations its products take.

Programs are StableHLO, in the portable form that PJRT passes on. Loops whose trip count the program
states are counted as often as they run, others once; each branch of a choice is counted once.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

LOCATION = re.compile(r'"([^"]+)":(\d+):\d+')
# Containers, not work.
STRUCTURE = {"func.func", "func.return", "func.call", "stablehlo.return", "sdy.return", "sdy.mesh"}


@dataclass(frozen=True)
class Operation:
    """One operation of a program."""

    name: str  # without the dialect: dot_general
    types: tuple[str, ...]  # element types of operands and results, each once: f32, ui64
    source: str  # file:line, "" = not known
    times: int  # that one launch runs it
    flops: float  # of one run; of products only
    detail: str  # custom_call: its target; collectives: what reduces, e.g. "add"; else ""


def read(code: bytes) -> ir.Module:
    """A program from its portable form. ValueError where it is none."""
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    return stablehlo.deserialize_portable_artifact(context, code)


def operations(module: ir.Module) -> Iterator[Operation]:
    """Every operation of the program, called functions as often as they are called."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    yield from _of_region(functions["main"].regions[0], functions, 1)


def total_flops(operations: Iterator[Operation]) -> float:
    return sum(operation.flops * operation.times for operation in operations)


def _of_region(
    region: ir.Region, functions: dict[str, ir.OpView], times: int
) -> Iterator[Operation]:
    for block in region.blocks:
        for view in block.operations:
            op = view.operation
            if op.name == "func.call":
                callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                yield from _of_region(functions[callee].regions[0], functions, times)
            elif op.name == "stablehlo.composite":
                yield _operation(op, times)  # the compiler may know it by its name
            elif op.name not in STRUCTURE:
                yield _operation(op, times)
            inner = times * _trip_count(op) if op.name == "stablehlo.while" else times
            for inner_region in op.regions:
                yield from _of_region(inner_region, functions, inner)


def _operation(op: ir.Operation, times: int) -> Operation:
    values = [*op.operands, *op.results]
    types = dict.fromkeys(kind for value in values if (kind := _element_type(value.type)))
    found = LOCATION.search(str(op.location))
    return Operation(
        op.name.split(".", 1)[1],
        tuple(types),
        f"{found[1]}:{found[2]}" if found else "",
        times,
        _product_flops(op),
        _detail(op),
    )


def _element_type(kind: ir.Type) -> str:
    """f32 of tensor<2x3xf32>; "" for what is no array, as a token."""
    return str(kind.element_type) if isinstance(kind, ir.ShapedType) else ""


def _detail(op: ir.Operation) -> str:
    if op.name == "stablehlo.custom_call":
        return ir.StringAttr(op.attributes["call_target_name"]).value
    if op.name == "stablehlo.composite":
        return ir.StringAttr(op.attributes["name"]).value
    if op.name in ("stablehlo.all_reduce", "stablehlo.reduce_scatter"):
        body = list(op.regions[0].blocks[0].operations)[:-1]  # without its return
        return "+".join(inner.operation.name.split(".", 1)[1] for inner in body)
    return ""


def _product_flops(op: ir.Operation) -> float:
    """2 per multiply-add of a dot_general; 0 for anything else."""
    if op.name != "stablehlo.dot_general":
        return 0.0
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = ir.ShapedType(op.operands[0].type).shape
    contracted = math.prod(left[axis] for axis in numbers.lhs_contracting_dimensions)
    return 2.0 * contracted * math.prod(ir.ShapedType(op.results[0].type).shape)


def _trip_count(loop: ir.Operation) -> int:
    """How often a loop of the form `for i in range(start, end)` runs, 1 where it has another."""
    condition = loop.regions[0].blocks[0]
    test = _source(condition.operations[len(condition.operations) - 1].operands[0])
    if test is None or test.name != "stablehlo.compare" or "LT" not in str(test):
        return 1
    counter, end = test.operands[0], _constant(test.operands[1])
    if end is None or not isinstance(counter, ir.BlockArgument):
        return 1
    start = _constant(loop.operands[counter.arg_number])
    return 1 if start is None else max(0, end - start)


def _source(value: ir.Value) -> ir.Operation | None:
    """The operation that gives a value, None for an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _constant(value: ir.Value) -> int | None:
    source = _source(value)
    if source is None or source.name != "stablehlo.constant":
        return None
    elements = ir.DenseIntElementsAttr(source.attributes["value"])
    return elements[0] if len(elements) == 1 else None
