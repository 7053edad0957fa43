# Figures: a style, subplots, a figure drawn upon over cells, one that is saved.
# %%
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
# %%
plt.rcParams["figure.figsize"] = (3, 2)
plt.rcParams.update({"font.size": 7, "axes.grid": True})
x = np.linspace(0, 1, 20)
# %%
plt.plot(x, x ** 2)
plt.title("square");
# %%
plt.hist(np.random.default_rng(0).normal(size=50), bins=5)
# %%
fig, ax = plt.subplots()
ax.plot(x, np.sin(6 * x), label="sin")
ax.set_xlabel("x")
# %%
line = ax.plot(x, np.cos(6 * x), label="cos")[0]
ax.legend()
fig
# %%
line.set_color("red")
len(ax.lines), ax.lines[1] is line, line.axes is ax, fig.axes[0] is ax
# %%
ax.set_title("twice")
fig.canvas.draw()
fig
# %%
fig.savefig("both.png", dpi=60)
!ls *.png
# %%
fig2, axes = plt.subplots(1, 2, figsize=(4, 1.5), sharey=True)
for a, c in zip(axes, ("viridis", "gray")):
    a.imshow(np.outer(x, x), cmap=c)
plt.tight_layout()
plt.show()
# %%
axes.shape, fig2.get_size_inches()
# %%
cmap = plt.get_cmap("plasma")
plt.scatter(x, x, c=x, cmap=cmap)
plt.colorbar()
plt.show()
# %%
plt.close("all")
plt.get_fignums(), plt.rcParams["font.size"]
