"""The graph that the config takes neighborhoods from."""

from __future__ import annotations

from raygnn.config import Config
from raygnn.console import say
from raygnn.data.bundle import Bundle
from raygnn.data.pagerank_graph import PagerankSettings, pagerank_graph


def neighborhood_graph(config: Config, bundle: Bundle) -> Bundle:
    """The graph that neighborhoods are of: the bundle, or its edges by personalised PageRank.

    Raises:
        DataError: walks are asked for on a graph of several types.
        ResourceError: their edges cannot be kept in the cache.
    """
    wanted = config.sampling.ppr
    if wanted is None:
        return bundle
    settings = PagerankSettings(wanted.top_k, wanted.alpha, wanted.epsilon)
    return pagerank_graph(bundle, settings, say)
