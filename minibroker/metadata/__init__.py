"""The immutable images that brokers and the controller share."""
