"""Controller design by pole placement (tu2006 section 4.4 and appendix A).

The plant is an integrator, G(z) = cT / (H (z - 1)), the controller C(z) = H (b0 z + b1) / (cT (z + a)).
The closed loop's characteristic equation is

    z^2 + (a - 1 + b0) z + (b1 - a) = (z - p1)(z - p2)                                  (eq. 18)

so b0 = 1 - (p1 + p2) - a and b1 = p1 p2 + a. The static gain (eq. 19) is one for every a: a is a free choice.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass

from penstock.vocabulary.errors import InvalidInputError, require_positive


@dataclass(frozen=True, slots=True)
class Controller:
    """Gains of u(k) = H/(cT) [b0 e(k) + b1 e(k-1)] - a u(k-1)."""

    a: float
    b0: float
    b1: float

    @property
    def poles(self) -> tuple[complex, complex]:
        """Roots of the closed loop's characteristic equation (eq. 17)."""
        linear, constant = self.a - 1 + self.b0, self.b1 - self.a
        root = cmath.sqrt(linear * linear - 4 * constant)
        return (-linear + root) / 2, (-linear - root) / 2


def controller_from_poles(first: complex, second: complex, a: float = -0.8) -> Controller:
    """Places the closed loop's poles.

    Args:
        first: A pole inside the unit circle.
        second: The other pole; the conjugate of `first` if `first` is not real.
        a: The free parameter, the (negated) pole of the controller itself. tu2006 uses -0.8.
    """
    for pole in (first, second):
        if not abs(pole) < 1:
            raise InvalidInputError(
                "closed-loop poles lie inside the unit circle", pole, "tu2006 uses 0.7 twice"
            )
    if abs(complex(first).imag + complex(second).imag) > 1e-9 or abs((first * second).imag) > 1e-9:
        raise InvalidInputError(
            "complex poles come as a conjugate pair", (first, second), "e.g. 0.6+0.2j and 0.6-0.2j"
        )
    if not abs(a) < 1:
        raise InvalidInputError(
            "the controller's own pole lies inside the unit circle", a, "tu2006 uses a = -0.8"
        )
    total, product = complex(first + second).real, complex(first * second).real
    return Controller(a=a, b0=1 - total - a, b1=product + a)


def controller_from_response(convergence_periods: float, damping: float = 1.0, a: float = -0.8) -> Controller:
    """Places the poles by how the loop should respond.

    Args:
        convergence_periods: Control periods until 63 % of a step are covered (3 in tu2006, pole rounded to
            0.7).
        damping: From 1 on, the loop never oscillates. 0.7 to 1 is usual; with less, the loop rings.
        a: See `controller_from_poles`.
    """
    require_positive("convergence_periods", convergence_periods, "3 is a good start")
    require_positive("damping", damping, "between 0.7 and 1 is usual")
    slowest = 1.0 / convergence_periods
    if damping <= 1:
        swing = slowest * math.sqrt(1 - damping * damping) / damping
        pole = cmath.exp(complex(-slowest, swing))
        return controller_from_poles(pole, pole.conjugate(), a)
    root = math.sqrt(damping * damping - 1)
    natural = slowest / (damping - root)
    return controller_from_poles(math.exp(-slowest), math.exp(-natural * (damping + root)), a)


CTRL_CONTROLLER = controller_from_poles(0.7, 0.7)
"""The controller of tu2006: a = -0.8, b0 = 0.4, b1 = -0.31."""
