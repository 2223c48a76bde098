"""Import packages that are installed by an extra of advibp."""

from __future__ import annotations

import importlib
from typing import Any

from advibp.errors import UserError


def optional(package: str, use: str, extra: str = "notebook") -> Any:
    """Import an optional package.

    Args:
        package: name of the module, such as "matplotlib.pyplot".
        use: what needs it, such as "cert.plot()".
        extra: the extra of advibp that installs it.

    Raises:
        UserError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise UserError(f"{use} needs {name}, which is not installed; run pip install 'advibp[{extra}]'.") from None
