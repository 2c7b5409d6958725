"""Checkpoints that real frameworks write, as judges of `afterfit average`; see frameworks.py beside this folder."""
