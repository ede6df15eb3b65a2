"""The same loops on several machines. Ray is imported in this package only, in `loading`; what does not call it runs without it.

The way of an unroll: a runner packs and seals many at a time (`replay.parcel`), a `Courier` delivers them to the shard of the runner's
node, and the same parcel goes to the member's learner through a `Desk`. A learner draws from all shards through a `ShardedReplay`.
"""
