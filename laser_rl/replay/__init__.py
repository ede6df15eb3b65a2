"""One store of unrolls for all members: insert, draw unrolls or whole episodes, mix with new ones, ahead of the learner."""
