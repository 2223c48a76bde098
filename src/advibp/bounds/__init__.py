"""Sets of inputs that can be passed to a network, and bounds of a network's outputs over them."""

from advibp.bounds.box import Box
from advibp.bounds.linear.crown import LinearBounds, crown, crown_ibp, intermediate
from advibp.bounds.perturbation import Perturbation
from advibp.bounds.rounded import Rounded
from advibp.bounds.zonotope import Zonotope

__all__ = ["Box", "LinearBounds", "Perturbation", "Rounded", "Zonotope", "crown", "crown_ibp", "intermediate"]
