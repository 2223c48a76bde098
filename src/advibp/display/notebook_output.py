"""Output in a notebook that is updated in place, so that progress takes one place instead of many lines."""

from __future__ import annotations

import time
from typing import Any

_EVERY = 0.5  # seconds between updates


class NotebookOutput:
    """One output of a notebook cell. The notebook keeps the last HTML that was shown.

    Examples:
        ```python
        output = NotebookOutput()
        for i in range(1000):
            output.show(f"<pre>{i} of 1000</pre>")
        output.show("<pre>finished</pre>", now=True)
        ```
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    def show(self, html: str, *, now: bool = False) -> None:
        """Replace the output.

        Args:
            html: the new content. Texts in it must be escaped.
            now: show it also if the last update was less than half a second ago. Default: skip it then.
        """
        if not now and time.perf_counter() - self._last < _EVERY:
            return
        from IPython.display import HTML, display  # a notebook's kernel has IPython

        self._last = time.perf_counter()
        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))
