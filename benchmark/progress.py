"""What people see while a grid runs: bars on a terminal, a line per finished cell elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmark.result import DONE, Outcome


class GridProgress:
    """A :class:`benchmark.grid.Listener` for people; prints to standard error.

    Failures are printed when they happen, with the last line of the error.
    """

    def __init__(self, n_cells: int) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.n_cells = n_cells
        self.n_finished = 0
        self.started_at: dict[str, float] = {}
        self.tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.total = self.bars.add_task("cells", total=n_cells)

    def __enter__(self) -> GridProgress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def started(self, outcome: Outcome) -> None:
        """Adds a bar for the cell."""
        self.started_at[outcome.digest] = time.monotonic()
        self.tasks[outcome.digest] = self.bars.add_task(
            f"  {outcome.cell.describe()}", total=outcome.cell.train.max_epochs
        )

    def epoch(self, outcome: Outcome, done: int, total: int) -> None:
        """Moves the cell's bar."""
        self._move(outcome, outcome.cell.describe(), done, total)

    def encoding(self, outcome: Outcome, done: int, total: int) -> None:
        """Lends the cell's bar to its encoder until the first epoch is done."""
        self._move(outcome, f"{outcome.cell.describe()}: encoding {total} items", done, total)

    def _move(self, outcome: Outcome, text: str, done: int, total: int) -> None:
        self.bars.update(self.tasks[outcome.digest], description=f"  {text}", completed=done, total=total)

    def finished(self, outcome: Outcome) -> None:
        """Prints one line and removes the bar."""
        self.n_finished += 1
        seconds = time.monotonic() - self.started_at[outcome.digest]
        text = f"[{self.n_finished}/{self.n_cells}] {outcome.status}: {outcome.row} / {outcome.column}, "
        text += f"{outcome.cell.describe()} ({seconds:.1f} s)"
        if outcome.status != DONE:
            text += f" - {outcome.reason}"
        self.bars.remove_task(self.tasks.pop(outcome.digest))
        self.bars.update(self.total, completed=self.n_finished)
        self.console.print(text, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for people, on standard error: standard output is for what was asked for."""
    print(text, file=sys.stderr, flush=True)
