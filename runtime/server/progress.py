"""Start-up on the terminal: bars while weights are read and buckets compiled, plain lines where nobody watches, a closing table.

A report is (stage, done, total); the stage `download` counts bytes, `read` counts bytes or tensors, `compile` counts buckets.
"""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_LABELS = {"download": "downloading", "read": "reading weights", "compile": "compiling buckets"}
_SECONDS_PER_LINE = 2.0


def _amount(stage: str, done: int, total: int) -> str:
    if stage == "compile":
        return f"{done} of {total}"
    return f"{100 * done // total if total else 100} %"


class StartupProgress:
    """Called with reports from any thread; shows bars on a terminal, else a line every few seconds and one at each end."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description:>18}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
            )
            self._bars = Progress(*columns, TimeElapsedColumn(), console=self._console)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        label, amount = _LABELS.get(stage, stage), _amount(stage, done, total)
        if self._bars is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(label, total=total, amount=amount)
            self._bars.update(self._tasks[stage], completed=done, total=total, amount=amount)
            return
        now_s = time.monotonic()
        is_end = done >= total
        is_due = now_s - self._printed_s.get(stage, float("-inf")) >= _SECONDS_PER_LINE
        if is_due or is_end:
            self._printed_s[stage] = now_s
            print(f"{label}: {amount}", file=self._stream, flush=True)


def ready_text(rows: Mapping[str, str], url: str, model_name: str, has_key: bool) -> str:
    """The closing table and a curl line that works as pasted."""
    width = max(map(len, rows), default=0)
    table = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
    key = ' -H "Authorization: Bearer $HALOGEN_API_KEY"' if has_key else ""
    body = f'{{"model": "{model_name}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
    curl = f"curl {url}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    return f"{table}\n\nready: {url}\ntry:   {curl}"
