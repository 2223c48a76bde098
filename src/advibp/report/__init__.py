"""Tables, figures and a self-contained page about runs. Reads their files and trains nothing."""

from advibp.report.comparing import Comparison
from advibp.report.html import write_page

__all__ = ["Comparison", "write_page"]
