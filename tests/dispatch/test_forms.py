"""Every form of a step that people write: none copies an array of a buffer, on CPU."""

from __future__ import annotations

import jax
import pytest
from support.few import few
from support.programs import built

forms = pytest.importorskip("benchmarks.evidence.forms", reason="comes with a clone")

KEY = jax.eval_shape(lambda: jax.random.key(0))
COPYING = {"cond both"} if jax.__version_info__ < (0, 11) else set()
"""Forms that XLA of an older JAX copies: it lets one of two branches alone write in place."""


@pytest.mark.parametrize("form", few(forms.FORMS, "cond learn", "vmap, masks"))
@pytest.mark.parametrize("sampler", few(forms.SAMPLERS, "Grouped"))
def test_no_form_of_a_step_copies_a_buffer(sampler, form):
    step, seeds = forms.FORMS[form]
    state = forms.buffer(forms.SAMPLERS[sampler], seeds)
    found = forms.copied(built(jax.jit(step, donate_argnums=0), state, KEY).as_text(), state)
    assert bool(found) == (form in COPYING)
