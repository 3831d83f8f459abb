"""The place where pickles of earlier versions look for these classes."""

from fbuf.sharded_state import ShardedIds, ShardedSample, ShardedState

__all__ = ["ShardedIds", "ShardedSample", "ShardedState"]
