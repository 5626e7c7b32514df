"""Plans and measurements of earlier calibrations."""
