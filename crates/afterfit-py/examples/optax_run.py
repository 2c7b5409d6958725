"""A dial as an optax transformation, under jit.

pip install './crates/afterfit-py[jax]' && python optax_run.py
"""

import jax
import jax.numpy as jnp
import optax

import afterfit.jax

steps = 400
keys = jax.random.split(jax.random.key(0), 4)
x, test_x = jax.random.normal(keys[0], (60, 20)), jax.random.normal(keys[1], (200, 20))
truth = jnp.zeros(20).at[:3].set(jnp.array([1.0, -2.0, 0.5]))
y, test_y = x @ truth + jax.random.normal(keys[2], (60,)), test_x @ truth

schedule = optax.cosine_decay_schedule(0.05, steps)
optimizer = optax.chain(
    afterfit.jax.dial(schedule, steps=steps, l2=(1e-2, 10.0), optimizer="heavy-ball", momentum=0.9),
    optax.sgd(schedule, momentum=0.9),
)
params = {"w": jnp.zeros(20)}
state = optimizer.init(params)


def loss(params: dict[str, jax.Array]) -> jax.Array:
    return 0.5 * jnp.mean((x @ params["w"] - y) ** 2)


@jax.jit
def step(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


for _ in range(steps):
    params, state = step(params, state)

print(f"as trained: {jnp.mean((test_x @ params['w'] - test_y) ** 2):.4f}")
for l2 in (0.01, 0.1, 1.0, 10.0):
    reading = afterfit.jax.read(state, params, l2=l2)
    print(f"l2 {l2:5g}: {jnp.mean((test_x @ reading.params['w'] - test_y) ** 2):.4f}, off by at most {reading.error:.1e}")
ridge = jnp.linalg.solve(x.T @ x / 60 + 0.1 * jnp.eye(20), x.T @ y / 60)
assert jnp.abs(afterfit.jax.read(state, params, l2=0.1).params["w"] - ridge).max() < 1e-2
