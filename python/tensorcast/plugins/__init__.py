"""Where serving engines plug in: each module is what an engine's own plug-in mechanism loads."""
