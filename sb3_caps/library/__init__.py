"""Policies that grow from task to task: ``folder`` keeps them, ``worth`` says which of them pay."""

from sb3_caps.library.folder import LibraryEntry, PolicyLibrary
from sb3_caps.library.worth import Consideration, Pruning, WorthInModel, worth_of_sources

__all__ = ["Consideration", "LibraryEntry", "PolicyLibrary", "Pruning", "WorthInModel", "worth_of_sources"]
