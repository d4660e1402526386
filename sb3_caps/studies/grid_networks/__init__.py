"""Grid navigation with small networks: CAPS beside SB3's DQN."""
