"""Plug-ins for serving engines. The plug-in mechanism of each engine loads its module."""
