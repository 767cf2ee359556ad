"""Layer-skip: the target's first layers draft over the target's own keys and values.

Owns: what is shared, and when. Must not know the rule, or how a model is cut short (that is `models`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specviz.drafts.model import ModelDraft
from specviz.runner import Runner
from specviz.runner.cache import SharedCache, TreeCache
from specviz.sampling import Sampler


class SkipDraft(ModelDraft):
    """Drafts with the first layers of the target, whose cache holds just what they would have computed themselves.

    So they never read the prompt, and of committed text only the last token, which the target has not read yet
    either. What they draft they write behind the committed text, where the target's next pass writes over it.
    """

    _target_cache: TreeCache

    def share(self, cache: TreeCache) -> None:
        """Told the cache of the lane's target before `start`."""
        self._target_cache = cache

    def _runner_over(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> Runner:
        del context_ids, sampler, cancelled  # the target reads the prompt
        self._shared = SharedCache(self._target_cache, self._loaded.config.num_hidden_layers)
        return Runner(self._loaded, cache=self._shared)

    def _catch_up(self) -> None:
        self._shared.follow()

    def _keep(self, rows: Sequence[int]) -> None:
        del rows  # the target has kept them
        self._runner.keep([])
