"""The paper's study of Monster Kong: Figures 8 to 11, and how much faster it goes with what we recommend."""
