"""What CAPS tells of itself, for discrete and continuous actions: its learner, its summary, its logs and its export."""

import pathlib
from typing import TypeVar

from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_caps.caps.gate import Gate
from sb3_caps.caps.learner import LearnerOnly
from sb3_caps.caps.summary import ReuseSummary, summarize
from sb3_caps.files.export import export_model
from sb3_caps.reuse.base import PolicyReuse
from sb3_caps.reuse.callbacks import with_monitor
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.statistics import NOT_ON_SCREEN

SelfReports = TypeVar("SelfReports", bound="ReuseReports")


class ReuseReports(PolicyReuse):
    """Mixin of CAPS and ContinuousCAPS: the learner alone, the summary, the logs and the export."""

    gate: Gate

    def learner(self) -> LearnerOnly:
        """
        :return: the learner as it is now, whatever ``predict`` acts by: ``evaluate_policy(model.learner(), env)``
        """
        return LearnerOnly(self)

    def learn(
        self: SelfReports,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfReports:
        if self.verbose >= 1:
            sources = [f"{source.name} ({source.kind})" for source in self.options.sources]
            own = self.options.names[self.options.n_sources :]
            told = own[0] if own == ["actor"] else f"{len(own)} actions"
            print(f"Options: {', '.join(sources) or 'no sources'}, {told}")
        if self.tensorboard_log is not None:
            callback = with_monitor(callback)
        super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        if self.verbose >= 1 and self._rewards is not None:
            print(self.reuse_summary())
        return self

    def reuse_summary(self) -> ReuseSummary:
        """
        :return: what sources and learner did in training and what they are worth, as far as ``safe`` tried them
        """
        if self.num_timesteps == 0:
            raise ValueError("Nothing was reused yet: call learn first.")
        return summarize(self.options, self._rewards or {}, self._use, self.gate.controller)

    @property
    def _rewards(self) -> dict[str, Evidence] | None:
        """What each behaviour was paid, by name; None where the selector does not ask."""
        return getattr(vars(self)["selector"], "rewards", None)

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        if self._rewards is not None:
            self._record_who_acts(self._rewards)
        super().dump_logs()

    def _record_who_acts(self, rewards: dict[str, Evidence]) -> None:
        for name, known in rewards.items():
            if known.n:
                self.logger.record(f"reuse/mean_reward/{name}", known.mean, exclude=NOT_ON_SCREEN)
        controller, names = self.gate.controller, self.options.source_names
        number = names.index(controller.name) + 1 if controller.is_source else 0
        self.logger.record("reuse/acts_by", controller.name)
        self.logger.record("reuse/acts_by_source", number, exclude=NOT_ON_SCREEN)
        sources = [rewards[name].mean for name in names if name in rewards and rewards[name].n]
        learner = rewards.get(self.learner().behaviour.name)
        if sources and learner is not None and learner.n:
            self.logger.record("reuse/learner_lead", learner.mean - max(sources))

    def export(self, path: str | pathlib.Path) -> None:
        """
        Write the model as arrays and a plain description, which ``load`` and ``as_source`` read without running
        anything, also with ``trust=False``. It acts as the model does, and learns on with a fresh optimizer. Sources
        that are code, and networks other than standard ones, are refused.

        :param path: the file; ``.npz`` is added to a path without a suffix
        """
        export_model(self, path)
