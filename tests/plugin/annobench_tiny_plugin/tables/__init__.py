"""Tables of the plugin: ``<paper>/<table>.yaml``."""
