"""The same loops on several machines. Ray is imported in this package only, in `calls`; what does not call it runs without it.

The way of an unroll: a runner encodes many at a time, a `ReplayWriter` delivers them to a shard, and the same bytes go to the member's
learner through a `MemberCoordinator`. A learner draws from all shards through a `ShardedReplay`. The supervisor, which is the process that
the user started, places the actors, replaces those that die, and owns the run directory.
"""
