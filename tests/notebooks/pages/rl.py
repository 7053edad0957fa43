# Reinforcement learning: a world like gym's, replay memory, DQN with a target network.
# %%
import random
from collections import deque, namedtuple
import numpy as np
import torch, copy

random.seed(1); np.random.seed(1); torch.manual_seed(1);
Transition = namedtuple("Transition", "state action reward next_state done")
Transition._fields
# %%
class Corridor:
    """Reach the right end."""

    n_actions = 2

    def __init__(self, length=5):
        self.length = length
        self.rng = np.random.default_rng(9)

    def reset(self):
        self.at = int(self.rng.integers(0, 2))
        return self._state()

    def step(self, action):
        self.at = max(0, self.at + (1 if action else -1))
        done = self.at == self.length
        return self._state(), float(done) - 0.01, done, {}

    def _state(self):
        return np.eye(self.length + 1, dtype=np.float32)[self.at]

env = Corridor()
state = env.reset()
state
# %%
memory = deque(maxlen=100)
policy = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
target = copy.deepcopy(policy)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-3)
# %%
eps = 0.9
def act(state):
    if random.random() < eps:
        return random.randrange(env.n_actions)
    with torch.no_grad():
        return policy(torch.from_numpy(state)).argmax().item()

action = act(state)
env.step(action)
# %%
def learn(batch_size=16, gamma=0.9):
    if len(memory) < batch_size:
        return
    batch = Transition(*zip(*random.sample(memory, batch_size)))
    s, s2 = (torch.from_numpy(np.stack(each)) for each in (batch.state, batch.next_state))
    q = policy(s).gather(1, torch.tensor(batch.action)[:, None]).squeeze()
    with torch.no_grad():
        best = target(s2).max(1).values * (1 - torch.tensor(batch.done).float())
    loss = torch.nn.functional.smooth_l1_loss(q, torch.tensor(batch.reward) + gamma * best)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
# %%
def play(episodes):
    global eps
    steps = []
    for episode in range(episodes):
        state, done, n = env.reset(), False, 0
        while not done and n < 60:
            action = act(state)
            next_state, reward, done, info = env.step(action)
            memory.append(Transition(state, action, reward, next_state, done))
            state, n = next_state, n + 1
            learn()
        eps *= 0.8
        steps.append(n)
    target.load_state_dict(policy.state_dict())
    return steps

play(4)
# %%
memory[-1]
# %%
play(4), len(memory), memory.maxlen, round(eps, 3)
# %%
type(memory[0]) is Transition, env.rng.random()
# %%
policy(torch.eye(6)).argmax(1)
# %%
play(3)
