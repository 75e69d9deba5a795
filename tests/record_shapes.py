"""A check of records against the jaxtyping shapes of their fields."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from beartype.door import die_if_unbearable
from jaxtyping import jaxtyped

from fedjax_het.algorithm import Algorithm, Term, Weighting
from fedjax_het.placeholders import HIDDEN_TEST_ROWS


@functools.cache
def _fields(record: type) -> dict[str, Any]:
    """The annotations of a record of the package; {} for plain tuples and records of other packages."""
    if not (hasattr(record, "_fields") and record.__module__.startswith("fedjax_het.")):
        return {}
    hints = get_type_hints(record, include_extras=True)
    return {name: hint for name, hint in hints.items() if not getattr(hint, "_is_protocol", False)}


def check_shapes(value: Any) -> None:
    """Raise an error unless every record in a tree of records has fields of the annotated types and shapes.

    A field may also hold the placeholder of test examples, which takes the place of their rows while clients train.
    An axis has one size in a record and may have another in the records inside it, such as the capacity of the rows of
    a client's training and test examples.
    """
    if isinstance(value, Mapping):
        for part in value.values():
            check_shapes(part)
    elif isinstance(value, tuple):
        with jaxtyped("context"):
            for name, hint in _fields(type(value)).items():
                field = getattr(value, name)
                if field is not HIDDEN_TEST_ROWS:
                    die_if_unbearable(field, hint, exception_prefix=f"{type(value).__name__}.{name} = ")
        for part in value:
            check_shapes(part)


def checked(function: Callable, result_type: Any = Any) -> Callable:
    """Return the function with its arguments and its result checked at each call."""

    @functools.wraps(function)
    def call(*arguments, **options):
        check_shapes((arguments, options))
        result = function(*arguments, **options)
        check_shapes(result)
        die_if_unbearable(result, result_type)
        return result

    return call


def with_checked_slots(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with a check of what each slot is given and what it returns."""
    scalar = get_args(Term)[-1]
    check_all = lambda measures: {name: checked(measure) for name, measure in measures.items()}  # noqa: E731
    return replace(
        algorithm,
        objective=tuple(checked(term, scalar) for term in algorithm.objective),
        local_update=algorithm.local_update._replace(train=checked(algorithm.local_update.train)),
        aggregator=algorithm.aggregator._replace(update=checked(algorithm.aggregator.update)),
        memory={name: kept._replace(update=checked(kept.update)) for name, kept in algorithm.memory.items()},
        survey=check_all(algorithm.survey),
        reports=check_all(algorithm.reports),
        published={name: m._replace(update=checked(m.update)) for name, m in algorithm.published.items()},
    )


def with_checked_weights(weighting: Weighting) -> Weighting:
    """Return the weighting with a check of its view and of the shape of its weights."""
    weights = get_args(get_args(get_type_hints(Weighting, include_extras=True)["update"])[-1])[0]

    def update(state, view):
        new_weights, new_state = checked(weighting.update)(state, view)
        die_if_unbearable(new_weights, weights)
        return new_weights, new_state

    return weighting._replace(update=update)
