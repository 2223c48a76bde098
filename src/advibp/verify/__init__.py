"""Certifies networks: verifiers, the attack, and a record for each image."""

from advibp.verify.attack_options import Attack
from advibp.verify.certification import certify
from advibp.verify.collapse import CollapseWarning
from advibp.verify.prediction import Prediction, Predictor, predict
from advibp.verify.radius import largest_proved_eps, smallest_broken_eps
from advibp.verify.records import Certificate, Record

__all__ = [
    "Attack",
    "Certificate",
    "CollapseWarning",
    "Prediction",
    "Predictor",
    "Record",
    "certify",
    "largest_proved_eps",
    "predict",
    "smallest_broken_eps",
]
