"""The worlds of the paper as Gymnasium environments, registered under the namespace ``sb3_caps``."""
