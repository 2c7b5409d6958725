"""Fit once. Choose the regularization afterwards.

`afterfit.sklearn` has scikit-learn's estimators with every strength of a range after one fit; :func:`average` makes every
strength of a folder of checkpoints; :func:`plan`, :func:`weights` and :mod:`afterfit.theory` are what the command of the
same names says. Importing this needs numpy alone; what needs more is imported when it is used.
"""

from . import theory
from ._afterfit import CheckpointError, __version__
from ._command import Averages, Output, Plan, Weights, average, plan, weights

__all__ = [
    "Averages",
    "CheckpointError",
    "Output",
    "Plan",
    "Weights",
    "__version__",
    "average",
    "plan",
    "theory",
    "weights",
]
