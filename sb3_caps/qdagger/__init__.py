from sb3_caps.qdagger.qdagger import QDagger

__all__ = ["QDagger"]
