"""Presets: fitted numbers of default configs, as data."""

from romou.devices.presets.files import known_presets, load_preset, preset_for

__all__ = ["known_presets", "load_preset", "preset_for"]
