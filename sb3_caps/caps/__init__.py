from sb3_caps.caps.arguments import PAPER
from sb3_caps.caps.caps import CAPS
from sb3_caps.caps.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["CAPS", "PAPER", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
