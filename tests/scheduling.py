"""Distribution of tests over workers: what one test has compiled or trained is there for the next."""

from xdist.scheduler import LoadScopeScheduling

from fedjax_het.algorithms import ALGORITHMS


class ByAlgorithm(LoadScopeScheduling):
    """Tests of an algorithm share its compiled round, those of a file what its fixtures train."""

    def _split_scope(self, nodeid: str) -> str:
        place, _, parameters = nodeid.partition("[")
        named = [part for part in parameters.rstrip("]").split("-") if part in ALGORITHMS]
        return named[0] if named else place.partition("::")[0]
