"""The broker's own code under a seeded schedule: a network and disks that fail, clients that retry, and a judge."""
