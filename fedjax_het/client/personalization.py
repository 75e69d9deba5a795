"""Personal models: rules that train them along with the global model, and that build them for evaluation."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate, Memory, OutputMixture, Personalization, Problem, StatefulGradientRule
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.types import Array, Batch, ClientView, Key, Params, PyTree, Variables
from fedjax_het.validation import Count, NonNegative, may_be_nonzero, validate_arguments

Mix = Literal["parameters", "outputs"]
Order = Literal["before", "after"]
AlphaRule = Literal["gradient", "released"]


def fine_tuned(local_update: LocalUpdate) -> Personalization:
    """The client's model after further local training, which neither the client nor the server stores.

        replace(fedavg(), personalize=fine_tuned(sgd(0.01, epochs=10, only="params/classifier/*")))

    Training starts from the server's current model with the client's personal leaves.

    Args:
        local_update: Local update that minimizes the algorithm's objective on the client's training examples.
    """

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        return local_update.train(problem, view, key).variables

    return personalize


def kept_model(problem: Problem, view: ClientView, key: Key) -> Variables:
    """The personal model stored in memory["own"], initially the initial model."""
    del problem, key
    return view.memory["own"]


def last_own_model(problem: Problem, view: ClientView, key: Key) -> Variables:
    """The client's last trained model in memory["own"] (`memories.last_model`); before the first, what it receives."""
    del problem, key
    own = view.memory["own"]
    return tree.where(own["is_known"], own["value"], view.start)


def summed_heads(problem: Problem, view: ClientView, key: Key) -> Variables:
    """The client's model with the sum of its two dense heads as head; see `models.with_personal_head`."""
    del problem, key
    params = view.start["params"]
    head = tree.add(params["classifier"], params["personal_head"])
    return view.start | {"params": params | {"classifier": head}}


@validate_arguments
def moreau_gradient(
    lam: NonNegative = 15.0,
    learning_rate: NonNegative = 0.1,
    steps: Count = 5,
    weight_decay: NonNegative = 0.0,
    *,
    restart: bool = False,
) -> StatefulGradientRule:
    """pFedMe's gradient of the Moreau envelope: the displacement of a personal model regularized towards l.

        `steps` times on one batch:  theta <- theta - lr (g(theta) + lam (theta - l) + decay theta)
        gradient in l:  lam (l - theta)

    theta starts each round at the received model and continues from step to step. The rule's state is theta, all
    variables of a model; batch statistics are those of the last pass.

    Args:
        lam: The paper's λ, 15 to 30.
        learning_rate: Learning rate of theta, the authors' personal rate (.09 or .1).
        steps: The paper's K (5).
        weight_decay: Weight decay of theta (.001 in the authors' optimizer).
        restart: Whether theta starts at l in every local step.

    References:
        Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. arXiv:2006.08848
    """

    def update(
        own: Variables, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple:
        def step(index: Array, carry: tuple) -> tuple:
            theta, state, _ = carry
            step_key = jax.random.fold_in(key, index)
            (loss, state), gradient = problem.value_and_grad(theta, state, batch, view, step_key)
            direction = tree.add(gradient, tree.scale(lam, tree.subtract(theta, params)))
            if may_be_nonzero(weight_decay):
                direction = tree.add(direction, tree.scale(weight_decay, theta))
            return tree.subtract(theta, tree.scale(learning_rate, direction)), state, jnp.asarray(loss, float)

        first = params if restart else own["params"]
        theta, state, loss = jax.lax.fori_loop(0, steps, step, (first, state, jnp.zeros((), float)))
        gradient = tree.scale(lam, tree.subtract(params, theta))
        return ((loss, state), gradient), {"params": theta, **state}

    return StatefulGradientRule(lambda view: view.local, update)


class MixedModel(NamedTuple):
    """A client's personal model v, its weight alpha in the mixture with the global model, and the optimizer states."""

    model: Variables
    alpha: Float[Array, "*clients"]
    optimizer: PyTree  # optimizer state of v
    common_optimizer: PyTree  # optimizer state of w, () unless it is kept between rounds


def mixed_model(alpha: float, optimizer: optax.GradientTransformation, *, keep_common: bool = False) -> Memory:
    """The MixedModel that a client stores in memory["own"]; before its first round, v is the initial model.

    Args:
        alpha: Initial alpha.
        optimizer: As in `mixture_training`.
        keep_common: As in `mixture_training`.
    """

    def init(variables: Variables) -> MixedModel:
        state = optimizer.init(variables["params"])
        return MixedModel(variables, jnp.asarray(alpha, float), state, state if keep_common else ())

    def update(problem: Problem, view: ClientView) -> MixedModel:
        own: MixedModel = view.results["gradient"]["own"]
        return own if keep_common else own._replace(common_optimizer=())

    return Memory(init, update)


@validate_arguments
def mixture_training(
    optimizer: optax.GradientTransformation,
    alpha_rate: NonNegative = 0.0,
    mix: Mix = "parameters",
    order: Order = "before",
    alpha_rule: AlphaRule = "gradient",
    *,
    keep_common: bool = False,
    weight_decay: NonNegative = 0.0,
    schedule: Schedule | None = None,
) -> StatefulGradientRule:
    """APFL's steps of the local copy w of the global model and of the personal model v, which are mixed.

        w' = w - lr g(w);   v' = v - lr dL/dv,   L: the objective of alpha v + (1 - alpha) w
        once a round, at its first step:  alpha' = alpha - rate dL/dalpha, in [0, 1]

    dL/dv = alpha g(mixture), and dL/dalpha = <v - w, g(mixture)>. The result is the complete step of w, so the local
    update's optimizer has to be `optax.scale(-1.0)`. The rule's state is the MixedModel that the client stores in
    memory["own"]; batch statistics of v are those of the mixture's last pass.

    Args:
        optimizer: Optimizer of w and of v, with separate states.
        alpha_rate: Learning rate of alpha. 0 keeps alpha constant.
        mix: "parameters", or "outputs": the objective of alpha f(v) + (1 - alpha) f(w).
        order: Whether the mixture uses w "before" or "after" its step.
        alpha_rule: "gradient", or "released": alpha' = alpha - rate (<v' - w', alpha (dL/dv + decay v) + (1 - alpha)
            dL/dw> + .02 alpha).
        keep_common: Whether the optimizer's state of w is also kept between rounds.
        weight_decay: The decay in the released rule of alpha: the weight decay of `optimizer` (default 0).
        schedule: Round -> factor of the optimizer's steps and of alpha_rate.

    References:
        Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020. arXiv:2003.13461
    """

    def init(view: ClientView) -> PyTree:
        own: MixedModel = view.memory["own"]
        if not keep_common:
            own = own._replace(common_optimizer=optimizer.init(view.local["params"]))
        return {"own": own, "is_first": jnp.ones((), bool)}

    def update(
        carried: PyTree, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple:
        own: MixedModel = carried["own"]
        alpha, factor = own.alpha, rate(1.0, schedule, view)
        v, v_state = tree.split_params(own.model)
        (loss, new_state), gradient = problem.value_and_grad(params, state, batch, view, key)
        step, common_state = optimizer.update(gradient, own.common_optimizer, params)
        step = tree.scale(factor, step)
        after = optax.apply_updates(params, step)
        partner = {"params": after, **new_state} if order == "after" else {"params": params, **state}

        def mixture_loss(v: Params, w: Params, alpha: Array) -> tuple[Array, Variables]:
            models = {"params": v, **v_state}, {**partner, "params": w}
            if mix == "parameters":
                w_params, w_state = tree.split_params(_mixed(alpha, *models))
                forward = problem.forward(w_params, w_state, batch, view, key)
            else:
                forward, other = (problem.forward(*tree.split_params(model), batch, view, key) for model in models)
                forward = forward._replace(outputs=_mixed(alpha, forward.outputs, other.outputs))
            return problem.sum_terms(forward), forward.state

        gradients, mixed_state = jax.grad(mixture_loss, (0, 1, 2), has_aux=True)(v, partner["params"], alpha)
        v_step, own_state = optimizer.update(gradients[0], own.optimizer, v)
        v_after = optax.apply_updates(v, tree.scale(factor, v_step))
        slope = gradients[2]
        if alpha_rule == "released":
            decayed = (
                tree.add(gradients[0], tree.scale(weight_decay, v)) if may_be_nonzero(weight_decay) else gradients[0]
            )
            mixed_gradient = _mixed(alpha, decayed, gradients[1])
            products = jax.tree.map(jnp.vdot, tree.subtract(v_after, after), mixed_gradient)
            slope = sum(jax.tree.leaves(products), 0.02 * alpha)
        moved = jnp.clip(alpha - alpha_rate * factor * slope, 0, 1)
        alpha = jnp.where(carried["is_first"], moved, alpha).astype(alpha.dtype)
        own = MixedModel({"params": v_after, **mixed_state}, alpha, own_state, common_state)
        return ((loss, new_state), tree.scale(-1.0, step)), {"own": own, "is_first": jnp.zeros((), bool)}

    return StatefulGradientRule(init, update)


def mixture(mix: Mix = "parameters") -> Personalization:
    """The mixture of the client's personal model with the server's current model, alpha v + (1 - alpha) w.

    Args:
        mix: The mixed quantity: "parameters" or "outputs".
    """

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables | OutputMixture:
        own: MixedModel = view.memory["own"]
        if mix == "parameters":
            return _mixed(own.alpha, own.model, view.start)
        return OutputMixture((own.model, view.start), (own.alpha, 1 - own.alpha))

    return personalize


def _mixed(alpha: Array, own: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: (alpha * a + (1 - alpha) * b).astype(a.dtype), own, other)
