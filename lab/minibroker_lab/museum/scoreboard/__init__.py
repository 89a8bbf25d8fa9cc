"""`minibroker scoreboard`: what programs of frameworks keep of exactly-once, failure by failure."""
