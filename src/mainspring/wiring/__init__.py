"""The only place that builds concrete objects: settings, stores, node, api."""
