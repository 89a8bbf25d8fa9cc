"""The coordinators over partitions: host, services, markers, verification."""
