"""Groups of the classic protocol: clients assign, the coordinator synchronizes (JoinGroup, SyncGroup, Heartbeat)."""
