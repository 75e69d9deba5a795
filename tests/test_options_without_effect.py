"""Options that would have no effect beside the others are refused."""

import pytest

from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import principal_directions


@pytest.mark.parametrize(
    ("factory", "others", "option", "value", "reason"),
    [(principal_directions, {}, "projection", "cosine", "with correction='per_axis'")],
)
def test_an_option_without_effect_beside_the_others_is_refused(factory, others, option, value, reason):
    with pytest.raises(InputError, match=f"^{option}: has no effect {reason}"):
        factory(**others, **{option: value})


def test_an_option_at_its_default_is_accepted():
    principal_directions(projection="orthogonal", correction="per_axis")
