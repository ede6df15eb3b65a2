"""The same loops on several machines. Ray is imported in this package only, and only when a run on a cluster starts.

The way of an unroll: a runner encodes many at a time, delivers them to a shard of the replay (`ReplayWriter`), and the same bytes to the
member's learner (`RunnerInbox`). A learner draws from all shards through a `ShardedReplay`. The supervisor, which is the process that the
user started, places the actors, replaces those that die, exchanges news with the learners (`LearnerLinks`), and owns the run directory.
"""
