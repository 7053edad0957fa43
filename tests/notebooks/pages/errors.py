# Exceptions, and what people do after them: the traceback, the debugger's frame, a retry, an assert.
# A restart loses: log
# %%
import json, traceback, warnings
import torch

def load(text):
    return json.loads(text)["key"]
# %%
load("{}")
# %%
try:
    load("not json")
except ValueError as error:
    kept = error
    print(type(error).__name__, error)
# %%
kept.args, kept.pos, isinstance(kept, json.JSONDecodeError)
# %%
undefined_name
# %%
class ShapeError(ValueError):
    def __init__(self, got, wanted):
        super().__init__(f"got {got}, wanted {wanted}")
        self.got, self.wanted = got, wanted

    def __reduce__(self):
        return type(self), (self.got, self.wanted)

def check(x):
    if x.ndim != 2:
        raise ShapeError(tuple(x.shape), "(n, m)")
    return x

check(torch.ones(3))
# %%
problem = ShapeError((3,), "(2, 2)")
check(torch.ones(2, 2)).sum()
# %%
problem.got, problem, type(problem) is ShapeError
# %%
try:
    torch.ones(2, 3) @ torch.ones(2, 3)
except RuntimeError as e:
    message = str(e)
message
# %%
try:
    try:
        load("[]")
    except TypeError as e:
        raise KeyError("inner") from e
except KeyError as e:
    chain = e.__cause__
    print(traceback.format_exc().count("Traceback"), repr(chain))
# %%
def retry(f, times=3):
    for attempt in range(times):
        try:
            return f(attempt)
        except ZeroDivisionError as e:
            print("attempt", attempt, e)
retry(lambda n: 1 / (n - 1) if n else 1 / 0)
# %%
log = open("log.txt", "w")
log.write("written\n")
log.flush()
print(open("log.txt").read())
# %%
warnings.warn("mind the gap")
# %%
assert torch.allclose(torch.ones(2), torch.ones(2) + 1), "not close"
# %%
x = 1
if x == 1:
print(x)
# %%
x = x / 1
check(torch.zeros(x, 2) if x > 5 else torch.zeros(1, 2)), retry(lambda n: n)
# %%
check(problem.got)
# %%
retry(load)
