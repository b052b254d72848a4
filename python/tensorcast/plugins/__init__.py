"""Plug-ins for serving engines. Each engine loads its own module through its plug-in mechanism."""
