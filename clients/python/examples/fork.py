"""Continues one beginning in several ways at the same time.

    fork.py "It was late" [WAYS]

The beginning is processed once. Each way is a session of its own, which could be continued further.
"""

import asyncio
import sys

import polysketch


async def main(beginning: str, ways: int = 3) -> None:
    async with polysketch.AsyncClient() as client, client.session() as session:
        usage = await session.append(beginning)
        forks = await session.fork(ways)
        results = await asyncio.gather(
            *(fork.complete(max_tokens=20, temperature=0.8, seed=seed).result() for seed, fork in enumerate(forks)))
        print(f"{usage.prompt_tokens} tokens, {ways} ways:")
        for result in results:
            print(f"- {beginning + result.text!r}")
        await asyncio.gather(*(fork.close() for fork in forks))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:3])))
