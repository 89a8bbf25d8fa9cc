"""Leader or follower of one partition."""
