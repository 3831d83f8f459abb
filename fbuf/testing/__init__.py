"""Checks of samplers and views, for a test of your own. It needs no test library.

    from fbuf import testing

    def test_my_sampler():
        testing.check_sampler(MySampler(), law=law)

    def test_my_view():
        testing.check_view(MyView(), expected=expected)

A check plays random histories with a buffer, and with an `Oracle`: the same buffer in plain Python.
A law gives the probability of each row of the oracle. A model of a view gives the data of each row.
`fbuf` tests its own samplers and views with the same checks. The page `docs/know/extending.md`
shows a sampler and a view with their tests.
"""

from fbuf.testing.check_sampler import check_sampler
from fbuf.testing.check_view import ANY, check_view
from fbuf.testing.oracle import Oracle, Row
from fbuf.testing.pair import Shape, rows

__all__ = ["ANY", "Oracle", "Row", "Shape", "check_sampler", "check_view", "rows"]
__dir__ = __all__.copy  # `dir` shows the public names alone
