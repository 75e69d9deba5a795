"""The client's parts of an algorithm: objectives, gradient rules, local updates, measures and memories."""
