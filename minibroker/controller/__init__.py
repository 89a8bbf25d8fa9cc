"""The controller of a cluster: owns the metadata image, decides, remembers, and publishes (Kafka's QuorumController).

It is reached as a broker reaches any other node: with Kafka's own request objects through the transport.
"""
