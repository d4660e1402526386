"""Policies in a folder, as files that can be read without running anything, for several processes at once."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.extras import import_string
from sb3_caps.files.export import export_source, source_from_export
from sb3_caps.files.lock import one_at_a_time
from sb3_caps.files.plain import BOOLEAN, Kind, integer, number, optional, record, table
from sb3_caps.files.save_util import atomic_write, sync_folder
from sb3_caps.library.worth import Consideration, Pruning, consider, prune
from sb3_caps.sources import IMPORT_STRING, SourcePolicy, as_source, evaluate_sources, unwrapped
from sb3_caps.sources.load import check_trust
from sb3_caps.sources.names import RESERVED

# As names of files and of options
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
POLICY, ENTRY = ".npz", ".json"
TEXT = Kind("a text of up to 10,000 characters", lambda found, where: _text(found, where))


@dataclass(frozen=True)
class Returns:
    """
    What a policy was worth on a task.

    :param mean: the mean return of its episodes, not discounted
    :param std: their standard deviation
    :param episodes: how many there were
    """

    mean: float
    std: float
    episodes: int


@dataclass(frozen=True)
class LibraryEntry:
    """
    What a library knows of a policy beside its numbers.

    :param name: its name, in logs and figures too
    :param kind: the class of the policy
    :param task: what it was learned for, the id of an environment where it has one
    :param observations: its observations, for people
    :param actions: its actions, for people
    :param deterministic: whether it always takes its likeliest action
    :param added: the date, as ISO 8601 has it
    :param origin: where it came from
    :param observation_map: an import string of what converts observations of others tasks to its own, None for nothing
    :param action_map: an import string of what converts its actions
    :param returns: what it was worth, by task
    """

    name: str
    kind: str
    task: str
    observations: str
    actions: str
    deterministic: bool
    added: str
    origin: str = ""
    observation_map: str | None = None
    action_map: str | None = None
    returns: dict[str, Returns] = field(default_factory=dict)


def _text(found: Any, where: str) -> str:
    if not isinstance(found, str) or len(found) > 10_000:
        raise ValueError(f"{where} must be {TEXT.accepts}, not {found!r}")
    return found


_RETURNS = record({"mean": number(), "std": number(0), "episodes": integer(1)}, build=Returns)
_ENTRY = record(
    {name: TEXT for name in ("name", "kind", "task", "observations", "actions", "added", "origin")}
    | {"deterministic": BOOLEAN, "observation_map": optional(TEXT), "action_map": optional(TEXT)}
    | {"returns": table(_RETURNS)},
    build=LibraryEntry,
)


class PolicyLibrary:
    """
    A folder of policies, which grows from task to task: ``CAPS(policy, env, source_policies=library)``.

    Each policy is an export, which is read without running anything, beside a description in JSON. Maps are import
    strings, which are run: pass ``trust=False`` to leave such policies out. Any number of processes may read and write
    it at once, and none of them loses a policy when it is killed.

    :param folder: where it is, made when the first policy is added
    :param trust: whether the code that maps stand for may run
    """

    def __init__(self, folder: str | Path, trust: bool = True) -> None:
        check_trust(trust)
        self.folder, self.trust = Path(folder), trust

    def __repr__(self) -> str:
        return f"PolicyLibrary({str(self.folder)!r})"

    @property
    def names(self) -> list[str]:
        """The names of the policies, in the order in which they were added."""
        return [entry.name for entry in self.entries()]

    def __len__(self) -> int:
        return len(self.entries())

    def __contains__(self, name: str) -> bool:
        # No path that leads elsewhere
        return NAME.fullmatch(name) is not None and (self.folder / f"{name}{ENTRY}").is_file()

    def __iter__(self) -> Iterator[SourcePolicy]:
        for entry in self.entries():
            source = self._source(entry)
            if source is not None:
                yield source

    def __getitem__(self, name: str) -> SourcePolicy:
        source = self._source(self.entry(name))
        if source is None:
            raise KeyError(f"'{name}' has maps, which are code: pass trust=True.")
        return source

    def entries(self) -> list[LibraryEntry]:
        """:return: what is known of each policy, in the order in which they were added"""
        found = []
        for file in sorted(self.folder.glob(f"*{ENTRY}")):
            try:
                found.append(self._read(file))
            except FileNotFoundError:
                # Removed in the meantime
                continue
        return sorted(found, key=lambda entry: entry.added)

    def entry(self, name: str) -> LibraryEntry:
        """
        :param name: of a policy
        :return: what is known of it
        """
        for entry in self.entries():
            if entry.name == name:
                return entry
        raise KeyError(f"There is no policy '{name}' in {self.folder}: it has {self.names}.")

    def add(
        self,
        policy: Any,
        name: str | None = None,
        task: str = "",
        n_eval_episodes: int = 0,
        origin: str = "",
        observation_map: str | None = None,
        action_map: str | None = None,
        deterministic: bool | None = None,
    ) -> str:
        """
        Add a policy. It is a copy: what becomes of the model later does not matter.

        :param policy: anything that ``as_source`` takes and ``export_source`` writes
        :param name: its name, by default that of the file or class; one that is taken is refused
        :param task: what it was learned for, the id of an environment where it has one
        :param n_eval_episodes: in how many episodes of the task to find out what it is worth there; 0 for none
        :param origin: where it came from, for people; by default the path, where a path is passed
        :param observation_map: an import string of what converts observations of other tasks to its own
        :param action_map: an import string of what converts its actions
        :param deterministic: see ``as_source``
        :return: its name
        """
        source = as_source(policy, name, deterministic=deterministic)
        if not NAME.fullmatch(source.name) or source.name in RESERVED:
            raise ValueError(
                f"'{source.name}' is no name for a policy in a library: pass one of up to 100 letters, digits and "
                "'_', '.', '+' and '-' that begins with a letter or digit."
            )
        for given in (observation_map, action_map):
            if given is not None and not (isinstance(given, str) and IMPORT_STRING.fullmatch(given)):
                raise ValueError(f"Maps are kept as import strings 'package.module:function', and {given!r} is none.")
        entry = LibraryEntry(
            name=source.name,
            kind=source.kind,
            task=task,
            observations=str(source.observation_space),
            actions=str(source.action_space),
            deterministic=source.deterministic,
            added=datetime.now(timezone.utc).isoformat(),
            origin=origin or (str(policy) if isinstance(policy, (str, Path)) else ""),
            observation_map=observation_map,
            action_map=action_map,
        )
        if n_eval_episodes:
            entry = replace(
                entry, returns={task: self._evaluate(self._with_maps(source, entry), task, n_eval_episodes)}
            )
        with one_at_a_time(self.folder):
            if source.name in self:
                raise ValueError(
                    f"{self.folder} has a policy '{source.name}' already: pass another name, or remove it."
                )
            self._remove_orphans()
            # A policy is there when its description is, which comes last and whole
            export_source(source, self.folder / f"{source.name}{POLICY}")
            self._write(entry)
        return source.name

    def remove(self, name: str) -> None:
        """
        Remove a policy.

        :param name: its name
        """
        with one_at_a_time(self.folder):
            if name not in self:
                raise KeyError(f"There is no policy '{name}' in {self.folder}: it has {self.names}.")
            (self.folder / f"{name}{ENTRY}").unlink()
            sync_folder(self.folder)
            self._remove_orphans()

    def evaluate(self, task: str, n_eval_episodes: int = 10, names: Sequence[str] | None = None) -> dict[str, Returns]:
        """
        Find out what policies are worth on a task, and remember it.

        :param task: the id of an environment
        :param n_eval_episodes: in how many episodes each
        :param names: which policies, by default those that fit and were not tried there yet
        :return: what is known of all that fit, by name
        """
        fitting = {source.name: source for source in self.for_env(task)}
        tried = {entry.name for entry in self.entries() if task in entry.returns}
        for name, source in fitting.items():
            if name not in tried if names is None else name in names:
                found = self._evaluate(source, task, n_eval_episodes)
                with one_at_a_time(self.folder):
                    if name in self:
                        entry = self.entry(name)
                        self._write(replace(entry, returns={**entry.returns, task: found}))
        known = {entry.name: entry.returns for entry in self.entries()}
        return {name: known[name][task] for name in fitting if task in known.get(name, {})}

    def for_env(self, env: GymEnv | str) -> list[SourcePolicy]:
        """
        :param env: an environment, or its id
        :return: the policies that fit it, with their maps where they have some
        """
        if isinstance(env, str):
            made = gym.make(env)
            try:
                return self.fitting(made.observation_space, made.action_space)
            finally:
                made.close()
        emits = unwrapped(env)[0] if isinstance(env, VecEnv) else env
        return self.fitting(emits.observation_space, emits.action_space)

    def fitting(self, observation_space: spaces.Space, action_space: spaces.Space) -> list[SourcePolicy]:
        """
        :param observation_space: what an environment emits
        :param action_space: the actions that it takes
        :return: the policies that fit, in the order in which to try them: first those that did well on some task
        """
        found = []
        for source in self:
            try:
                source.check_fits(observation_space, action_space)  # type: ignore[arg-type]
            except ValueError:
                continue
            found.append(source)
        promise = self._promise({source.name for source in found})
        return sorted(found, key=lambda source: -promise[source.name])

    def _promise(self, names: set[str]) -> dict[str, float]:
        """
        :param names: policies that fit an environment
        :return: for each its largest return on a task that it was tried in, on a scale from the worst to the best of
            these there; 1 where nothing is known, or of no other one
        """
        promise = dict.fromkeys(names, 1.0)
        known = {entry.name: entry.returns for entry in self.entries() if entry.name in names and entry.returns}
        for name, returns in known.items():
            shares = []
            for task, own in returns.items():
                means = [other[task].mean for other in known.values() if task in other]
                low, high = min(means), max(means)
                shares.append((own.mean - low) / (high - low) if high > low else 1.0)
            promise[name] = max(shares)
        return promise

    def consider(self, model: Any, env: GymEnv | str, **kwargs: Any) -> Consideration:
        """
        Tell whether a policy is worth adding, see ``sb3_caps.library.worth.consider``.

        :param model: anything that ``as_source`` takes
        :param env: the task that it has learned
        :param kwargs: see there
        :return: a number and a reason
        """
        return consider(self, model, env, **kwargs)

    def prune(self, **kwargs: Any) -> Pruning:
        """
        Suggest what to remove, see ``sb3_caps.library.worth.prune``. Nothing is removed.

        :param kwargs: see there
        :return: names, and what is lost without them
        """
        return prune(self, **kwargs)

    def check(self) -> dict[str, str]:
        """:return: the policies that cannot be read, and why"""
        errors = {}
        for file in sorted(self.folder.glob(f"*{ENTRY}")):
            try:
                source_from_export(self.folder / f"{self._read(file).name}{POLICY}")
            except (ValueError, OSError) as error:
                errors[file.stem] = str(error)
        return errors

    def _evaluate(self, source: SourcePolicy, task: str, n_eval_episodes: int) -> Returns:
        (worth,) = evaluate_sources([source], task, n_eval_episodes)
        return Returns(worth.mean, worth.std, worth.episodes)

    def _source(self, entry: LibraryEntry) -> SourcePolicy | None:
        """:return: the policy, None where it was removed in the meantime or where its maps may not run"""
        if not self.trust and (entry.observation_map or entry.action_map):
            return None
        try:
            source = source_from_export(self.folder / f"{entry.name}{POLICY}")
        except ValueError:
            if entry.name not in self:
                return None
            raise
        return self._with_maps(as_source(source, entry.name), entry)

    def _with_maps(self, source: SourcePolicy, entry: LibraryEntry) -> SourcePolicy:
        maps = {
            name: import_string(given)
            for name, given in (("observation_map", entry.observation_map), ("action_map", entry.action_map))
            if given is not None
        }
        return as_source(source, **maps) if maps else source

    def _read(self, file: Path) -> LibraryEntry:
        try:
            found: LibraryEntry = _ENTRY.read(json.loads(file.read_text()), file.stem)
            if found.name != file.stem:
                raise ValueError(f"it tells of '{found.name}'")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is damaged, or no description of a policy ({error}).") from error
        return found

    def _write(self, entry: LibraryEntry) -> None:
        with atomic_write(self.folder / f"{entry.name}{ENTRY}") as file:
            file.write((json.dumps(asdict(entry), indent=2, ensure_ascii=False) + "\n").encode())

    def _remove_orphans(self) -> None:
        """What a process that was killed has left: policies without a description, which comes last and goes first."""
        for file in self.folder.glob(f"*{POLICY}"):
            if not (self.folder / (file.name.removesuffix(POLICY) + ENTRY)).exists():
                file.unlink(missing_ok=True)
