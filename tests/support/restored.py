"""Loading as a run does that restores its environments, too: bit for bit what was saved."""

from __future__ import annotations

import functools

import fbuf

load = functools.partial(fbuf.load, episodes="keep")
sharded_load = functools.partial(fbuf.sharded.load, episodes="keep")
