"""Targets of the steps of a sequence or a rollout: returns, advantages and their masks.

Each function takes a batch of `fbuf.Sequence`, `fbuf.rollout` or `fbuf.pop`, and the critic's
values. The functions bootstrap at truncations, and behind the last step; callers must not.

    batch = fbuf.rollout(state, view=fbuf.Transition())
    value = critic(batch.data.item["observation"])            # of each step
    next_value = critic(batch.data.next_observation)          # of what each step led to
    found = fbuf.targets.gae(
        batch, batch.data.item["reward"], value, next_value, gamma=0.99, lambda_=0.95
    )
    found.advantage, found.target, found.mask
"""

from fbuf.dispatch.torch_compile import opaque_all as _opaque_all
from fbuf.targets.gae import gae
from fbuf.targets.lambda_returns import lambda_returns
from fbuf.targets.results import Advantages, Targets
from fbuf.targets.retrace import retrace
from fbuf.targets.vtrace import vtrace

__all__ = ["Advantages", "Targets", "gae", "lambda_returns", "retrace", "vtrace"]
__dir__ = __all__.copy  # `dir` shows the public names alone

_opaque_all(globals()[name] for name in __all__)
