# Magics: %%time, %%capture, %run, %%writefile, %timeit, !, and what comes of them.
# %%
%%time
total = sum(range(100_000))
total
# %%
%%writefile helper.py
"""A helper."""
import sys
SCALE = 3

def scale(x):
    return x * SCALE

if __name__ == "__main__":
    made, args = scale(7), sys.argv[1:]
    print("run with", args)
# %%
%run helper.py a b
made
# %%
args, scale(2), SCALE
# %%
import helper
helper.scale(5), helper.scale is scale, helper.__doc__
# %%
%%capture said
print("not shown")
total + 1
# %%
said.stdout, len(said.outputs)
# %%
files = !ls *.py
files, type(files).__name__
# %%
!echo {total} $made
# %%
name = "world"
out = !echo "hello $name"
out[0].upper(), out.n
# %%
best = %timeit -o -q -n 3 -r 2 sum(range(10))
best.loops, best.repeat
# %%
%env SOME_SETTING=on
import os
os.environ["SOME_SETTING"]
# %%
%cd -q ..
os.path.exists("helper.py")
# %%
%cd -q -
os.environ["SOME_SETTING"], os.path.exists("helper.py"), scale(1)
# %%
%%bash
for i in 1 2; do echo "line $i"; done
# %%
%alias_magic t timeit
who = %who_ls int
who
# %%
%precision 3
best.repeat / 7
# %%
%reset_selective -f made
"made" in globals(), "total" in globals()
# %%
%matplotlib inline
%config InlineBackend.figure_format = "png"
import matplotlib.pyplot as plt
plt.plot([1, 2]);
