"""Controller design: pole placement against tu2006's gains, and against the closed loop's step response."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load.design import (
    CTRL_CONTROLLER,
    Controller,
    controller_from_poles,
    controller_from_response,
)
from penstock.vocabulary.errors import InvalidInputError

COST_S, PERIOD_S, HEADROOM = 0.005, 0.5, 0.97


def step_response(gains: Controller, periods: int) -> np.ndarray:
    """A unit step of the target through eq. 10 and the plant y(k+1) = y(k) + cT/H u(k) (eq. 4), from rest."""
    per_u = COST_S * PERIOD_S / HEADROOM
    y = np.zeros(periods)
    last_error = last_u = 0.0
    for k in range(periods - 1):
        error = 1.0 - y[k]
        u = (gains.b0 * error + gains.b1 * last_error) / per_u - gains.a * last_u
        y[k + 1] = y[k] + per_u * u
        last_error, last_u = error, u
    return y


def step_response_of_eq_16(gains: Controller, periods: int) -> np.ndarray:
    """The same by theory: inverse z-transform of eq. 16 times z/(z-1), outside the unit circle."""
    n, radius = 4096, 1.02
    z = radius * np.exp(2j * np.pi * np.arange(n) / n)
    closed_loop = (gains.b0 * z + gains.b1) / (z**2 + (gains.a - 1 + gains.b0) * z + (gains.b1 - gains.a))
    y = np.fft.ifft(closed_loop * z / (z - 1)) * radius ** np.arange(n)
    return y.real[:periods]


def test_two_poles_at_seven_tenths_give_the_gains_of_the_paper() -> None:
    gains = controller_from_poles(0.7, 0.7)
    assert (gains.a, gains.b0, gains.b1) == pytest.approx((-0.8, 0.4, -0.31))
    assert gains == CTRL_CONTROLLER


def test_three_periods_at_damping_one_give_a_double_pole_near_seven_tenths() -> None:
    first, second = controller_from_response(3.0, damping=1.0).poles
    assert first == pytest.approx(math.exp(-1 / 3), abs=1e-6)
    assert second == pytest.approx(math.exp(-1 / 3), abs=1e-6)
    assert abs(first - 0.7) < 0.02


@pytest.mark.parametrize("damping", [0.3, 0.7, 0.9])
def test_a_damping_below_one_gives_a_conjugate_pair_of_that_damping(damping: float) -> None:
    first, second = controller_from_response(4.0, damping).poles
    assert first == pytest.approx(second.conjugate())
    decay, swing = -math.log(abs(first)), abs(cmath.phase(first))
    assert decay == pytest.approx(1 / 4.0)
    assert decay / math.hypot(decay, swing) == pytest.approx(damping)


def test_a_damping_above_one_gives_two_real_poles_the_slower_as_designed() -> None:
    slow, fast = controller_from_response(5.0, damping=1.25).poles
    assert slow == pytest.approx(math.exp(-1 / 5))
    assert fast.imag == 0.0
    # damping = (s1 + s2) / (2 sqrt(s1 s2)) of the two decay rates
    rates = -math.log(slow.real), -math.log(fast.real)
    assert sum(rates) / (2 * math.sqrt(math.prod(rates))) == pytest.approx(1.25)


@pytest.mark.parametrize("a", [-0.95, -0.8, -0.49, 0.0, 0.5])
def test_the_static_gain_is_one_whatever_the_free_parameter(a: float) -> None:
    gains = controller_from_poles(0.7, 0.5, a=a)
    at_one = (gains.b0 + gains.b1) / (1 + (gains.a - 1 + gains.b0) + (gains.b1 - gains.a))
    assert at_one == pytest.approx(1.0)


def test_the_papers_loop_answers_a_step_as_its_transfer_function_says() -> None:
    y = step_response(CTRL_CONTROLLER, 60)
    np.testing.assert_allclose(y, step_response_of_eq_16(CTRL_CONTROLLER, 60), atol=1e-9)
    # by partial fractions: two poles at 0.7, first sample b0 = 0.4, so 1 - y(k) = (1 - k/7) 0.7^k
    k = np.arange(60)
    np.testing.assert_allclose(1 - y, (1 - k / 7) * 0.7**k, atol=1e-12)
    assert y[2] > 1 - 1 / math.e, "63 % after two to three periods: the zero at 0.775 helps"
    assert abs(1 - y[12]) < 0.02, "98 % after twelve"
    assert y.max() == pytest.approx(1 + 3 / 7 * 0.7**10), "the zero's price is an overshoot of 1.2 %"


def test_without_a_zero_there_is_no_overshoot_but_the_step_takes_longer() -> None:
    """The free parameter moves the zero: the gains differ in more than name (tu2006 sec. 5 doubts it)."""
    gains = controller_from_poles(0.7, 0.7, a=-0.49)
    assert gains.b1 == pytest.approx(0.0)
    y = step_response(gains, 60)
    k = np.arange(60)
    np.testing.assert_allclose(1 - y, (1 + 0.3 * k) * 0.7**k, atol=1e-12)
    assert y.max() <= 1.0
    assert int(np.argmax(y > 1 - 1 / math.e)) == 6


def test_an_underdamped_design_rings_and_a_damped_one_does_not() -> None:
    ringing = step_response(controller_from_response(6.0, 0.2), 80)
    calm = step_response(controller_from_response(6.0, 1.0), 80)
    assert ringing.max() > 1.3
    assert calm.max() < 1.05
    assert ringing[-1] == pytest.approx(1.0, abs=1e-3)
    assert calm[-1] == pytest.approx(1.0, abs=1e-3)


radii = st.floats(0.0, 0.95)
real_pairs = st.tuples(st.floats(-0.95, 0.95), st.floats(-0.95, 0.95))
conjugate_pairs = st.builds(cmath.rect, radii, st.floats(0.0, math.pi)).map(lambda p: (p, p.conjugate()))


@settings(max_examples=60, derandomize=True)
@given(st.one_of(real_pairs, conjugate_pairs), st.floats(-0.95, 0.95))
def test_any_poles_inside_the_unit_circle_are_recovered_and_the_loop_converges(
    poles: tuple[complex, complex], a: float
) -> None:
    gains = controller_from_poles(*poles, a=a)
    # eq. 18 is matched coefficient by coefficient; a double root is only known to the root of the precision
    assert sum(gains.poles) == pytest.approx(complex(sum(poles)), abs=1e-9)
    assert gains.poles[0] * gains.poles[1] == pytest.approx(complex(poles[0] * poles[1]), abs=1e-9)
    straight = max(abs(gains.poles[0] - poles[0]), abs(gains.poles[1] - poles[1]))
    crossed = max(abs(gains.poles[0] - poles[1]), abs(gains.poles[1] - poles[0]))
    assert min(straight, crossed) < 1e-6
    assert all(abs(pole) < 1 for pole in gains.poles)
    y = step_response(gains, 600)
    np.testing.assert_allclose(y[:100], step_response_of_eq_16(gains, 100), atol=1e-6)
    np.testing.assert_allclose(y[-20:], 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        pytest.param(1.0, 0.5, "closed-loop poles lie inside the unit circle", id="on_the_circle"),
        pytest.param(0.5, -1.2, "closed-loop poles lie inside the unit circle", id="outside"),
        pytest.param(
            0.8 + 0.7j, 0.8 - 0.7j, "closed-loop poles lie inside the unit circle", id="outside_pair"
        ),
        pytest.param(0.6 + 0.2j, 0.6 + 0.2j, "complex poles come as a conjugate pair", id="the_same_twice"),
        pytest.param(0.6 + 0.2j, 0.5 - 0.2j, "complex poles come as a conjugate pair", id="different_parts"),
        pytest.param(0.6 + 0.2j, 0.5, "complex poles come as a conjugate pair", id="one_complex_one_real"),
    ],
)
def test_poles_that_cannot_be_placed_are_rejected(first: complex, second: complex, rule: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        controller_from_poles(first, second)
    assert error.value.rule == rule
    assert error.value.hint


@pytest.mark.parametrize("a", [1.0, -1.0, 3.0])
def test_a_controller_that_is_itself_unstable_is_rejected(a: float) -> None:
    with pytest.raises(InvalidInputError, match=r"own pole lies inside the unit circle; got: .*a = -0.8"):
        controller_from_poles(0.7, 0.7, a=a)


@pytest.mark.parametrize(
    ("periods", "damping", "rule"),
    [
        (0.0, 1.0, "convergence_periods must be a positive number; got: 0.0"),
        (-3.0, 1.0, "convergence_periods must be a positive number; got: -3.0"),
        (3.0, 0.0, "damping must be a positive number; got: 0.0"),
        (3.0, math.nan, "damping must be a positive number; got: nan"),
    ],
)
def test_a_response_that_makes_no_sense_is_rejected(periods: float, damping: float, rule: str) -> None:
    with pytest.raises(InvalidInputError, match=rule):
        controller_from_response(periods, damping)


@pytest.mark.parametrize("poles", [(math.nan, 0.7, -0.8), (0.7, math.nan, -0.8), (0.7, 0.7, math.nan)])
def test_a_pole_that_is_not_a_number_is_rejected(poles: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidInputError, match="inside the unit circle; got: nan"):
        controller_from_poles(*poles)
