"""The resources of the API, one module for those that belong together."""
