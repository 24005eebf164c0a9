"""Speed and size, measured as ratios in one run: these numbers are shown, never asserted."""
