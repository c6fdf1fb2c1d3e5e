"""What a decode step takes on a device that is not here: facts about devices and engines, and constants held
against what others measured. No torch."""
