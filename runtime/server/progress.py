"""Start-up on the terminal: bars while weights are read and buckets compiled, else plain lines.

A report is (stage, done, total): `read` counts bytes, `compile` counts buckets; a total of 0 means
that the stage is a line for the user, such as the announcement of a download.
"""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_LABELS = {"read": "reading weights", "compile": "compiling buckets"}
_SECONDS_PER_LINE = 2.0


def _amount(stage: str, done: int, total: int) -> str:
    return f"{done} of {total}" if stage == "compile" else f"{100 * done // total} %"


class StartupProgress:
    """Called with reports from any thread; shows bars on a terminal, else a line every few seconds
    and one at each end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed_s: dict[str, float] = {}

    def __enter__(self) -> Self:
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
        if total == 0:
            self._print(stage)
        elif self._console.is_terminal:
            self._draw(stage, done, total)
        elif done >= total or self._is_due(stage):
            self._print(f"{_LABELS.get(stage, stage)}: {_amount(stage, done, total)}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def _is_due(self, stage: str) -> bool:
        now_s = time.monotonic()
        is_due = now_s - self._printed_s.get(stage, float("-inf")) >= _SECONDS_PER_LINE
        if is_due:
            self._printed_s[stage] = now_s
        return is_due

    def _draw(self, stage: str, done: int, total: int) -> None:
        if self._bars is None:  # not earlier: a download shows a bar of its own
            columns = (TextColumn("{task.description:>18}"), BarColumn())
            amount = TextColumn("{task.fields[amount]}")
            self._bars = Progress(*columns, amount, TimeElapsedColumn(), console=self._console)
            self._bars.start()
        amount = _amount(stage, done, total)
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(
                _LABELS.get(stage, stage), total=total, amount=amount
            )
        self._bars.update(self._tasks[stage], completed=done, total=total, amount=amount)


def ready_text(rows: Mapping[str, str], url: str, model_name: str, has_key: bool) -> str:
    """The closing table and a curl line that works as pasted."""
    width = max(map(len, rows), default=0)
    table = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
    key = ' -H "Authorization: Bearer $HALOGEN_API_KEY"' if has_key else ""
    body = (
        f'{{"model": "{model_name}", "messages": [{{"role": "user", "content": "Say hello."}}], '
        '"max_tokens": 64, "temperature": 0}'
    )
    curl = f"curl {url}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    return f"{table}\n\nready: {url}\ntry:   {curl}"
