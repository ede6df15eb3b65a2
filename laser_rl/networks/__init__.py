"""Networks: torso, memory and heads are independent choices; a user brings a torso of their own (build.users_torso)."""
