"""The controller of a cluster: owns the metadata image, decides, remembers, and publishes (Kafka's QuorumController).

It is reached as a broker reaches any other node: with Kafka's own request objects through the transport. One object
stands for the quorum; a vote between controllers is not simulated.

A request is served alone, in the order of arrival. It reads `state.ControllerState`, which holds the image, and makes
a change: image, journal, then publishers, the brokers among them. The answer waits until the journal is synced. The
image is replaced, never changed, so code that holds one can keep reading it. After a restart the journal gives the
image back (`journal`; `kraft` reads a real Kafka's metadata log).

What it decides, one module each: topics and their replicas, configs, features, ACLs, users; which brokers are alive
(`heartbeats`: a broker is fenced when its session ends); who leads a partition and who is in sync (`elections`,
`replication`: a leader is elected from the in-sync set, outside of it only when unclean elections are allowed);
replicas that move (`reassignments`).

What can go wrong: a broker that is cut off from the controller alone goes on leading what it led (its appends wait for
followers that another leads by then); a journal that cannot be synced refuses every later change.
"""
