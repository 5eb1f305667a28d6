"""Devices: facts, presets, targets, backends."""
