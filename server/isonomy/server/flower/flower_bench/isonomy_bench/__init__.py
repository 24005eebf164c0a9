"""A payload to a node and back, as Flower messages."""
