"""Construction of a federation from a data set and a partition."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_het.data import splitting
from fedjax_het.data.assignment import LabeledExamples, Partition, ResamplingPartition
from fedjax_het.data.augmentation import Augmentation
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Federation, Fractions
from fedjax_het.data.preparation import Preparation, moments
from fedjax_het.data.targets import Targets, check_targets, standardise_labels
from fedjax_het.data.timeline import Drift, apply_drift
from fedjax_het.errors import InputError
from fedjax_het.labels import find_kind
from fedjax_het.types import ClientData, Examples
from fedjax_het.validation import CountOrZero, Finite, FractionBelowOne, Positive, Seed, validate_arguments

# Each choice has its own random stream, so changing one setting does not affect the others.
_TEST, _PARTITION, _NEWCOMERS, _SPLIT, _EQUAL, _PUBLIC, _DRIFT = range(7)


@validate_arguments
def federate(
    dataset: Dataset,
    partition: Partition,
    num_clients: CountOrZero,
    *,
    seed: Seed = 0,
    valid_fraction: FractionBelowOne = 0.0,
    client_test_fraction: FractionBelowOne | Literal["auto"] = "auto",
    test_fraction: FractionBelowOne = 0.2,
    unseen_domains: Sequence[str] = (),
    unseen_clients: CountOrZero = 0,
    local_test: bool = False,
    equal_train: bool = False,
    standardise: bool | Sequence[tuple[Finite, Positive]] = False,
    standardise_targets: Targets = "none",
    augment: Augmentation | None = None,
    public: FractionBelowOne | Dataset = 0.0,
    drift: Drift | None = None,
) -> Federation:
    """Distribute a data set over clients.

    1. The examples of `unseen_domains` are held out, from all splits: federation.unseen.
    2. The common test set is the published test split of the other domains if there is one; otherwise `test_fraction`
       of the other examples outside the published validation split, stratified by domain and class.
       If `public` is a fraction, that part of the remaining training examples becomes public, stratified in this way.
    3. `partition` distributes the rest over num_clients + unseen_clients clients. A random `unseen_clients` of them
       become federation.newcomers, which have data but never train.
    4. The examples of each client are split at random into train, valid (`valid_fraction`) and test
       (`client_test_fraction`), with at least one in train. If the data set has a published validation split, it
       determines each client's validation examples instead, and a client may have no training examples.

    Args:
        dataset: The examples.
        partition: The rule that assigns examples to clients.
        num_clients: The number of training clients. 0: the number of domains that are not held out (with `by_domain`,
            the writers, roles or sites of the data set), minus `unseen_clients`.
        seed: The seed of all random choices.
        valid_fraction: The fraction of each client's examples used for validation.
        client_test_fraction: The fraction of each client's examples in its test set. "auto": 0 if there is a common
            test set, published or sampled, else 0.2. With 0, all examples of newcomers are test examples.
        test_fraction: The fraction of all examples in the common test set. 0: no common test set.
        unseen_domains: The name or names of the domains that no client has.
        unseen_clients: The number of clients that never train.
        local_test: Whether there is no common test set. The published test split is then distributed like the rest,
            and each client is tested on its part of that split (with `by_domain`: each site's own test set).
        equal_train: Whether training clients are subsampled at random to the smallest number of training examples.
        standardise: Whether inputs become (x - mean) / deviation per channel. True: moments of the training examples
            of training clients. [(mean, deviation), ...] per channel, for pixels in 0..1: constants, as required for
            differential privacy.
        standardise_targets: How labels that are numbers are standardised, (y - mean) / deviation per target, by the
            training examples: "none", "common" (those of all training clients) or "client" (each client's own, which it
            need not share). Clients train on the standardised numbers; metrics are in the original units.
        augment: The augmentation of training images, see `augmentation.images` (default None).
        public: The inputs without labels that all clients and the server have, for algorithms that read them: the
            fraction of the training examples that no client then has, or another data set with inputs of this shape.
        drift: The rule by which the data of clients change with the round, see `fedjax_het.data.drift`. Clients are
            then tested on their own examples, which change like the others. None: data never change.

    Returns:
        The federation, determined by the seed; compare `fingerprint` across machines.

    Raises:
        InputError: Settings are inconsistent, a domain is unknown, or the partition does not fit the clients.
    """
    unseen = splitting.find_unseen_domains(dataset, unseen_domains)
    check_targets(standardise_targets, dataset, partition)
    if standardise and dataset.has_tokens:
        raise InputError(f"standardise: {dataset.name} has tokens, whose numbers are names. Set standardise=False.")
    if client_test_fraction == splitting.AUTO:
        has_common_test = test_fraction > 0 or splitting.has_own_split(dataset.is_test, dataset, unseen)
        client_test_fraction = splitting.default_client_test_fraction(has_common_test)
    if valid_fraction + client_test_fraction >= 1:
        raise InputError(
            f"valid_fraction: {valid_fraction} and client_test_fraction: {client_test_fraction} leave nothing to train "
            "on. Give fractions whose sum is less than 1."
        )
    requested = Fractions(test_fraction, client_test_fraction, valid_fraction)
    fractions = splitting.resolve_fractions(dataset, unseen, requested, local_test)
    test, rest = splitting.hold_out(dataset, unseen, fractions, local_test, np.random.default_rng([seed, _TEST]))
    public_inputs, rest = _choose_public(public, dataset, rest, np.random.default_rng([seed, _PUBLIC]))
    num_clients = num_clients or _count_trained_domains(dataset, rest, unseen_clients)
    num_all = num_clients + unseen_clients
    _check_shared_examples(partition, fractions, unseen_clients)
    parts = _distribute_examples(dataset, rest, partition, num_all, np.random.default_rng([seed, _PARTITION]))
    domains = _find_domains(dataset, parts)
    names = _name_clients(domains, len(parts))
    streams = [np.random.default_rng([seed, _SPLIT, i]) for i in range(num_all)]
    splits = splitting.split_clients(dataset, parts, fractions, streams)
    shuffled = np.random.default_rng([seed, _NEWCOMERS]).permutation(num_all)
    trained, new = np.sort(shuffled[:num_clients]), np.sort(shuffled[num_clients:])
    if fractions.client_test == 0:
        splits = splitting.move_train_to_test(splits, new)
    if equal_train:
        splits = splitting.equalize_sizes(splits, trained, [np.random.default_rng([seed, _EQUAL, i]) for i in trained])
    training = np.concatenate([splits[i].train for i in trained])
    labels, units = standardise_labels(standardise_targets, dataset, splits, training)
    examples = Examples(dataset.inputs, labels)
    federation = Federation(
        name=dataset.name,
        data=_gather_client_data(examples, splits, trained),
        newcomers=_gather_client_data(examples, splits, new) if unseen_clients else None,
        test=splitting.to_rows(test) if len(test) else None,
        unseen={name: splitting.to_rows(positions) for name, positions in unseen.items()},
        class_names=dataset.class_names,
        client_names=tuple(names[i] for i in trained),
        newcomer_names=tuple(names[i] for i in new),
        prepare=_make_preparation(standardise, dataset, training, augment),
        fractions=fractions,
        vocabulary=dataset.vocabulary,
        client_domains=None if domains is None else tuple(domains[i] for i in trained),
        units=units,
    )
    if public_inputs is not None:
        federation = federation.with_public(public_inputs)
    if drift is None:
        return federation
    _check_drift(federation)
    own = [np.random.default_rng([seed, _DRIFT, 1 + i]) for i in trained]
    rng = np.random.default_rng([seed, _DRIFT])
    return apply_drift(federation, drift, dataset, [splits[i] for i in trained], own, rng, seed)


def _check_drift(federation: Federation) -> None:
    if federation.test is not None:
        raise InputError(
            "test_fraction: with a drift, clients are tested on their own examples, which change like the others, and "
            "a common test set would not. Set test_fraction=0, or local_test=True to distribute a published test split."
        )
    if federation.newcomers is not None:
        raise InputError("unseen_clients: with a drift, all clients train. Set unseen_clients=0.")
    kind = find_kind(federation.examples.labels)
    if kind.decide is None:
        raise InputError(f"drift: {federation.name} has {kind.title}, for which phases are not evaluated.")


def _choose_public(
    public: float | Dataset, dataset: Dataset, rest: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray | None, np.ndarray]:
    """(The public inputs, the positions that remain for clients.)"""
    if isinstance(public, Dataset):
        inputs = public.inputs
        kinds = [(x.inputs.dtype, x.inputs.shape[1:], x.vocabulary) for x in (public, dataset)]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"public: inputs of {public.name} have shape {kinds[0][1]} and type {kinds[0][0]}, those of "
                f"{dataset.name} {kinds[1][1]} and {kinds[1][0]}. Give data with the same shape, type and vocabulary."
            )
    elif not public:
        return None, rest
    else:
        is_public = np.zeros(len(dataset.labels), bool)
        candidates = rest[dataset.splits["train"][rest]]
        is_public[candidates] = splitting.draw_stratified(splitting.find_strata(dataset, candidates), public, rng)
        if not is_public.any():
            raise InputError(f"public: {public} of {len(candidates)} examples is none. Give a larger fraction.")
        inputs, rest = dataset.inputs[is_public], rest[~is_public[rest]]
    return inputs, rest


def _make_preparation(
    standardise: bool | Sequence[tuple[float, float]],
    dataset: Dataset,
    training: np.ndarray,
    augment: Augmentation | None,
) -> Preparation:
    if isinstance(standardise, bool):
        return Preparation(moments(dataset.inputs, training) if standardise else None, augment)
    if len(standardise) != (num_channels := dataset.inputs.shape[-1]):
        raise InputError(
            f"standardise: {len(standardise)} pairs (mean, deviation), and inputs of {dataset.name} have "
            f"{num_channels} channels. Give a pair for each."
        )
    mean, deviation = np.asarray(standardise, np.float64).T
    return Preparation((mean, deviation), augment, are_moments_public=True)


def _count_trained_domains(dataset: Dataset, rest: np.ndarray, unseen_clients: int) -> int:
    """The number of domains with examples to distribute, minus the clients that never train."""
    num_domains = len(np.unique(dataset.domains[rest]))
    if num_domains <= unseen_clients:
        raise InputError(
            f"num_clients: 0 means one client for each domain, and {dataset.name} has {num_domains} for "
            f"{unseen_clients} unseen_clients. Give fewer unseen_clients, or a number of clients."
        )
    return num_domains - unseen_clients


def _check_shared_examples(partition: Partition, fractions: Fractions, unseen_clients: int) -> None:
    held = {
        "valid_fraction": fractions.client_valid,
        "client_test_fraction": fractions.client_test,
        "unseen_clients": unseen_clients,
    }
    if isinstance(partition, ResamplingPartition) and (name := next((name for name, x in held.items() if x), "")):
        raise InputError(
            f"{name}: clients of this partition share examples, so what one holds out another trains on. Set it to 0, "
            "and measure on the common test set."
        )


def _distribute_examples(
    dataset: Dataset, rest: np.ndarray, partition: Partition, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    if dataset.num_classes < 2 and dataset.has_label_per_example:
        raise InputError(
            f"{dataset.name}: all labels are of one class, '{dataset.class_names[0]}'. Give data of several."
        )
    if dataset.has_label_per_example:
        examples = LabeledExamples(dataset.classes[rest], dataset.domains[rest], dataset.num_classes, rest)
    else:
        numbers = dataset.labels[rest] if dataset.kind.name == "numbers" else None
        examples = LabeledExamples(np.zeros(len(rest), np.int32), dataset.domains[rest], 0, rest, numbers)
    parts = partition(examples, num_clients, rng)
    given = np.sort(np.concatenate(parts)) if len(parts) else np.zeros(0, int)
    if isinstance(partition, ResamplingPartition):
        return [rest[part] for part in parts]
    if len(parts) != num_clients or not np.array_equal(given, np.arange(len(rest))):
        raise InputError(
            f"the partition made {len(parts)} parts with {len(given)} positions in all for {num_clients} clients and "
            f"{len(rest)} examples. Assign every position to exactly one client."
        )
    return [rest[part] for part in parts]


def _gather_client_data(examples: Examples, splits: list[splitting.ClientSplit], chosen: np.ndarray) -> ClientData:
    return ClientData(examples, *(splitting.pad_lists([splits[i][part] for i in chosen]) for part in range(3)))


def _find_domains(dataset: Dataset, parts: list[np.ndarray]) -> list[str] | None:
    """The domain of each client; None unless there are several and every client has the examples of one."""
    owned = [np.unique(dataset.domains[part]) for part in parts]
    if len(dataset.domain_names) == 1 or any(len(domains) != 1 for domains in owned):
        return None
    return [dataset.domain_names[int(codes[0])] for codes in owned]


def _name_clients(domains: list[str] | None, num_clients: int) -> list[str]:
    """Name clients "client_003", or after their domain if each has one: "sketch", or "sketch_0", "sketch_1"."""
    if domains is None:
        digits = max(3, len(str(num_clients - 1)))
        return [f"client_{i:0{digits}d}" for i in range(num_clients)]
    numbers = {domain: iter(range(num)) for domain, num in Counter(domains).items() if num > 1}
    return [f"{domain}_{next(numbers[domain])}" if domain in numbers else domain for domain in domains]
