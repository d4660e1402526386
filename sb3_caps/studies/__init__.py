"""The studies: each is a folder with what it runs, measures and draws; ``shared`` is what they have in common."""
