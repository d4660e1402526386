"""``sb3-caps reproduce sequences``: one task after another, with a library that grows."""
