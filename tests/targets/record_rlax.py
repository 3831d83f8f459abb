"""Write rlax_values.json: what rlax returns for some unbroken sequences.

    python tests/targets/record_rlax.py          in an environment with rlax and JAX

The tests read that file, so that they need no rlax.
"""

import json
import pathlib

import jax
import numpy as np
import rlax

NAMES = ("reward", "value", "next_value", "q", "log_prob", "behavior_log_prob")
STEPS = 12


def rounded(numbers):
    return [float(f"{float(number):.9g}") for number in numbers]


def case(seed, gamma, lambda_, rho_bar, often):
    """The arguments, and the values of each function."""
    rng = np.random.default_rng(seed)
    given = {name: rng.normal(size=STEPS).astype(np.float32) for name in NAMES}
    terminated = rng.random(STEPS) < often
    value, following = given["value"], np.append(given["value"][1:], given["next_value"][-1:])
    discount = (gamma * ~terminated).astype(np.float32)
    steps = given["reward"], discount
    log_rho = given["log_prob"] - given["behavior_log_prob"]
    found = rlax.vtrace_td_error_and_advantage(
        value,
        following,
        *steps,
        np.exp(log_rho),
        lambda_,
        clip_rho_threshold=rho_bar,
        clip_pg_rho_threshold=rho_bar,
    )
    retrace = rlax.retrace_continuous(
        given["q"], given["q"][1:], following, *steps, log_rho[1:], lambda_
    )
    return {
        "gamma": gamma,
        "lambda_": lambda_,
        "rho_bar": rho_bar,
        "terminated": terminated.tolist(),
        "given": {name: rounded(numbers) for name, numbers in given.items()},
        "lambda_returns": rounded(rlax.lambda_returns(*steps, following, lambda_)),
        "gae": rounded(
            rlax.truncated_generalized_advantage_estimation(
                *steps, lambda_, np.append(value, following[-1:])
            )
        ),
        "vtrace_errors": rounded(found.errors),
        "vtrace_advantage": rounded(found.pg_advantage),
        "retrace_errors": rounded(retrace),
    }


if __name__ == "__main__":
    cases = [
        case(0, 0.99, 0.95, 1.0, 0.0),
        case(1, 0.9, 0.0, 1.0, 0.0),
        case(2, 0.9, 1.0, 2.0, 0.0),
        case(3, 1.0, 0.7, 0.5, 0.2),
    ]
    made = {"rlax": rlax.__version__, "jax": jax.__version__, "cases": cases}
    path = pathlib.Path(__file__).parent / "rlax_values.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
