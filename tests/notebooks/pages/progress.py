# Progress bars without widgets: tqdm in a console, \r by hand, an output that is replaced.
# %%
from tqdm import tqdm, trange
import sys, time
import torch
torch.manual_seed(0);
# %%
losses = []
for epoch in tqdm(range(3), desc="epochs", ncols=60):
    losses.append(1 / (epoch + 1))
losses
# %%
for i in range(5):
    print(f"\rstep {i + 1}/5", end="")
print()
# %%
bar = tqdm(total=4, ncols=60, desc="by hand")
for i in range(4):
    bar.update()
bar.close()
# %%
bar.n, bar.desc, bar.total
# %%
from IPython.display import HTML, Markdown, clear_output, display
for i in range(3):
    clear_output(wait=True)
    print("epoch", i)
# %%
handle = display(Markdown("**0 %**"), display_id="progress")
for i in (50, 100):
    handle.update(Markdown(f"**{i} %**"))
# %%
handle.update(HTML("<b>done</b>"))
handle.display_id
# %%
total = 0.0
for i in (t := trange(4, ncols=60, leave=False)):
    total += torch.rand(1).item()
    t.set_postfix(total=f"{total:.2f}")
print(f"{total:.4f}")
# %%
class Meter:
    def __init__(self, name):
        self.name, self.sum, self.n = name, 0.0, 0

    def update(self, value):
        self.sum += value
        self.n += 1
        return self

    def __str__(self):
        return f"{self.name} {self.sum / self.n:.3f}"

meter = Meter("loss")
for value in losses:
    meter.update(value)
print(meter, file=sys.stderr)
# %%
print(meter.update(3.0), total, torch.rand(1).item())
