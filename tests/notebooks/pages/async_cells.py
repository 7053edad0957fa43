# Async cells: await at top level, gather, queues, async generators, a semaphore.
# A restart loses: limit limited queue task
# %%
import asyncio, time
from collections import Counter
# %%
async def fetch(i, delay=0.001):
    await asyncio.sleep(delay)
    return {"id": i, "body": "x" * i}

await fetch(3)
# %%
results = await asyncio.gather(*(fetch(i) for i in range(5)))
results[-1]
# %%
async def ticks(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i * i

[t async for t in ticks(4)]
# %%
limit = asyncio.Semaphore(2)
running, most = 0, 0
async def limited(i):
    global running, most
    async with limit:
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
    return i

sum(await asyncio.gather(*map(limited, range(6)))), most
# %%
async for t in ticks(2):
    print("tick", t)
print(running)
# %%
async def producer(queue):
    for i in range(4):
        await queue.put(i)
    await queue.put(None)

async def consumer(queue):
    seen = []
    while (item := await queue.get()) is not None:
        seen.append(item)
    return seen

queue = asyncio.Queue(maxsize=2)
task = asyncio.create_task(producer(queue))
print(await consumer(queue))
task.done(), task.result(), queue.qsize()
# %%
async def slow():
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled")
        raise

try:
    await asyncio.wait_for(slow(), 0.01)
except asyncio.TimeoutError as error:
    print("too slow", type(error).__mro__[0] is asyncio.TimeoutError)
# %%
class Client:
    async def __aenter__(self):
        self.log = Counter()
        return self

    async def __aexit__(self, *exc):
        self.log["closed"] += 1

    async def get(self, i):
        self.log["get"] += 1
        return (await fetch(i))["body"]

async with Client() as client:
    print(await client.get(2), client.log)
# %%
client.log["closed"], await client.get(1), len(results)
