"""Networks given by a name, by a text in the paper's notation, or by a user's function."""

from advibp.moved import renamed
from advibp.nets.building import build, spec_of
from advibp.nets.initialization import Init, ibp_init, is_freshly_initialized
from advibp.nets.layer_table import Row, describe, summary
from advibp.nets.layers import Normalize, Residual
from advibp.nets.structures import FC, PAPER, STRUCTURES, Conv, Res, grammar, is_known, parse
from advibp.nets.user_networks import from_file
from advibp.user_code import is_user_code

__all__ = [
    "FC",
    "PAPER",
    "STRUCTURES",
    "Conv",
    "Init",
    "Normalize",
    "Res",
    "Residual",
    "Row",
    "build",
    "describe",
    "from_file",
    "grammar",
    "ibp_init",
    "is_freshly_initialized",
    "is_known",
    "is_user_code",
    "parse",
    "spec_of",
    "summary",
]

__getattr__ = renamed(__name__, {"is_own": "is_user_code"})
