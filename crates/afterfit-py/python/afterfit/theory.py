"""What the theorems promise: deviation bounds, brackets, continuous-time flows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from ._afterfit import call
from ._command import _flags

__all__ = ["Bracket", "Flow", "bound", "bracket", "flow"]


def bound(
    *,
    rate: float,
    l2: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    optimizer: Literal["sgd", "preconditioned", "nesterov-paper"] = "sgd",
    largest_rate: float | None = None,
    noise: Literal["variance", "bounded"] = "variance",
    condition: float | None = None,
    lambda_min: float | None = None,
) -> float:
    """How far one stochastic run's average may lie from its mean (Theorems 1–3, claim 3).

    Parameters
    ----------
    rate : float
        The rate; the smallest, if it varies.
    l2 : float
        The strength.
    alpha, beta : float
        Smallest and largest curvature.
    sigma : float
        Size of the gradient noise.
    delta : float
        The bound may fail with this probability.
    optimizer : {"sgd", "preconditioned", "nesterov-paper"}
        Theorem 1, 2 or 3.
    largest_rate : float, optional
        If the rate varies.
    noise : {"variance", "bounded"}
        Whether sigma² bounds the mean square of the noise, or sigma the noise itself.
    condition : float, optional
        Condition number of Q, for preconditioned.
    lambda_min : float, optional
        Smallest eigenvalue of the Hessian, for nesterov-paper.

    Returns
    -------
    float

    Examples
    --------
    >>> from afterfit import theory
    >>> round(theory.bound(rate=0.1, l2=0.1, alpha=0.1, beta=1.0, sigma=1.0, delta=0.05))
    133
    """
    flags = _flags(
        rate=rate, l2=l2, alpha=alpha, beta=beta, sigma=sigma, delta=delta, optimizer=optimizer,
        largest_rate=largest_rate, noise=noise, condition=condition, lambda_min=lambda_min,
    )  # fmt: skip
    return float(json.loads(call(["afterfit", "theory", "bound", "--json", *flags]))["epsilon"])


@dataclass(frozen=True)
class Bracket:
    """Two strengths, and whether the box between them is a theorem for this loss.

    Attributes
    ----------
    lambda_1, lambda_2 : float
        The ends.
    theorem : bool
        Whether the loss is one that the proof covers.
    """

    lambda_1: float
    lambda_2: float
    theorem: bool


def bracket(*, rate: float, l2: float, alpha: float, beta: float, separable: bool = False) -> Bracket:
    """The strengths between which the average of a non-quadratic loss lies (Theorem 4).

    Parameters
    ----------
    rate : float
        The rate.
    l2 : float
        The strength of the average.
    alpha, beta : float
        Smallest and largest curvature.
    separable : bool
        Whether the loss is a sum of one-dimensional losses.

    Returns
    -------
    Bracket

    Examples
    --------
    >>> from afterfit import theory
    >>> theory.bracket(rate=0.1, l2=0.8, alpha=0.5, beta=1.0, separable=True).theorem
    True
    """
    flags = _flags(rate=rate, l2=l2, alpha=alpha, beta=beta, separable=separable)
    return Bracket(**json.loads(call(["afterfit", "theory", "bracket", "--json", *flags])))


@dataclass(frozen=True)
class Flow:
    """One eigenvalue in continuous time, per unit of the linear term.

    Attributes
    ----------
    path, regularized, averaged : float
        The path, its regularized twin, and the average of the path.
    mass : float
        The mass spent.
    """

    path: float
    regularized: float
    averaged: float
    mass: float


def flow(*, eigenvalue: float, l2: float, time: float, alpha: float | None = None) -> Flow:
    """Continuous time: the path, its regularized twin and the mass spent, on one eigenvalue (appendix A).

    Parameters
    ----------
    eigenvalue : float
        Of the Hessian.
    l2 : float
        The strength.
    time : float
        The time.
    alpha : float, optional
        Nesterov flow with this alpha; gradient flow without it.

    Returns
    -------
    Flow

    Examples
    --------
    >>> from afterfit import theory
    >>> found = theory.flow(eigenvalue=1.0, l2=0.5, time=2.0)
    >>> abs(found.mass * found.averaged + (1 - found.mass) * found.path - found.regularized) < 1e-12
    True
    """
    flags = _flags(eigenvalue=eigenvalue, l2=l2, time=time, alpha=alpha)
    return Flow(**json.loads(call(["afterfit", "theory", "flow", "--json", *flags])))
