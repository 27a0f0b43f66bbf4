"""A controller by how it should respond: poles, gains, and the step response of the closed loop."""

from penstock.policies.load.design import Controller, controller_from_response


def step_response(gains: Controller, periods: int) -> list[float]:
    """Delay over target after a start at 0, in the model y(k+1) = y(k) + u(k) (tu2006 eq. 4, scaled)."""
    delay, last_error, last_u, response = 0.0, 0.0, 0.0, []
    for _ in range(periods):
        error = 1.0 - delay
        u = gains.b0 * error + gains.b1 * last_error - gains.a * last_u
        delay, last_error, last_u = delay + u, error, u
        response.append(delay)
    return response


for periods, damping in ((3, 1.0), (3, 0.6), (8, 1.0)):
    gains = controller_from_response(periods, damping)
    pole = gains.poles[0]
    print(f"converge in {periods} periods, damping {damping}: pole {pole.real:.3f}{pole.imag:+.3f}j")
    print(f"  gains a={gains.a:.2f} b0={gains.b0:.3f} b1={gains.b1:.3f}")
    print("  step", " ".join(f"{delay:.2f}" for delay in step_response(gains, 12)))
