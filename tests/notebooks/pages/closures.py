# Closures, decorators, caches, partials and generators' functions.
# A restart loses: squares
# %%
import functools, itertools, operator, contextlib
from functools import partial, reduce
# %%
def counter(start=0):
    n = start
    def bump(by=1):
        nonlocal n
        n += by
        return n
    def look():
        return n
    return bump, look

bump, look = counter(10)
bump(), bump(5), look()
# %%
bump()
look()
# %%
def logged(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        log.append((f.__name__, args))
        return f(*args, **kwargs)
    wrapper.calls = 0
    return wrapper

log = []
@logged
def area(w, h=2):
    """The area."""
    return w * h

area(3)
# %%
area(4, h=5), log
# %%
@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

fib(30)
# %%
fib(50), area.__doc__, area.__name__
# %%
double = partial(operator.mul, 2)
compose = lambda *fs: reduce(lambda f, g: lambda x: g(f(x)), fs)
pipeline = compose(double, str, len)
pipeline(512)
# %%
pipeline(5), double.func, double
# %%
def even():
    yield from (n for n in itertools.count() if n % 2 == 0)

squares = (n * n for n in range(4))
list(squares), list(itertools.islice(even(), 3))
# %%
@contextlib.contextmanager
def scope(name):
    print("enter", name)
    yield name.upper()
    print("exit", name)

with scope("a") as s:
    print(s)
# %%
with scope("b"):
    pass
scale = 3
scaled = lambda x: x * scale
scaled(2)
# %%
scale = 10
scaled(2), list(itertools.islice(even(), 2))
# %%
callbacks = [lambda i=i: i for i in range(3)]
table = {"sum": sum, "max": max, "len": len, "area": area, "str.upper": str.upper}
[c() for c in callbacks]
# %%
[(name, f is globals().get(name)) for name, f in table.items()], table["len"](log), callbacks[2]()
