"""Presets: the numbers of default configs that are fitted to a device's compiler or hardware, as data."""

from romou.devices.presets.files import known_presets, load_preset, preset_for

__all__ = ["known_presets", "load_preset", "preset_for"]
