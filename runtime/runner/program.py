"""A program to be compiled: a function of arrays, the shapes it takes, what it gives up.

Compiled, it takes the leaves of its arguments one after the other and returns a list of the leaves
of its result. Whoever calls it needs no class of the model's, so that a program kept in a file is
called by a process that has no model. Knows neither steps nor buckets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Program:
    """A function to be compiled for arguments of these shapes; argument `donated` is given up."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: int | None

    @property
    def leaves(self) -> list[jax.ShapeDtypeStruct]:
        """What the compiled program takes, in order."""
        return jax.tree.leaves(self.arguments)

    @property
    def donated_leaves(self) -> tuple[int, ...]:
        """Places among `leaves` of what is given up."""
        if self.donated is None:
            return ()
        sizes = [len(jax.tree.leaves(argument)) for argument in self.arguments]
        first = sum(sizes[: self.donated])
        return tuple(range(first, first + sizes[self.donated]))

    def jitted(self, name: str) -> Any:
        """A jax.jit function of this name, from leaves to leaves."""
        structure = jax.tree.structure(self.arguments)

        def call(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(self.run(*jax.tree.unflatten(structure, leaves)))

        call.__name__ = name
        return jax.jit(call, donate_argnums=self.donated_leaves)

    def compile(self, name: str, options: Mapping[str, str]) -> jax.stages.Compiled:
        """Trace, lower and compile it as a program of this name, with the compiler's options."""
        return self.jitted(name).lower(*self.leaves).compile(compiler_options=dict(options))
