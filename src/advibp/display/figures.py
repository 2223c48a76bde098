"""Optional packages for notebooks: matplotlib for figures, pandas for tables."""

from __future__ import annotations

import importlib
from typing import Any

from advibp.errors import UserError


def optional(package: str, use: str) -> Any:
    """Import an optional package.

    Args:
        package: name of the module, such as "matplotlib.pyplot".
        use: what needs it, such as "cert.plot()".

    Raises:
        UserError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise UserError(f"{use} needs {name}, which is not installed; run pip install 'advibp[notebook]'.") from None
