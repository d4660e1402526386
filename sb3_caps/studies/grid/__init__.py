"""The paper's study of grid navigation with tables: Figures 1 to 7 and Theorem 2."""
