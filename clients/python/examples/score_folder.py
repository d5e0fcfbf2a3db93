"""Prints the perplexity of each text file of a folder, computed by several replicas.

    score_folder.py FOLDER HOST:PORT[,HOST:PORT...]

Each replica scores as many files at the same time as it has slots. A file whose replica fails is scored by another one.
"""

import asyncio
import math
import pathlib
import sys

import polysketch


async def main(folder: str, servers: str) -> None:
    paths = sorted(pathlib.Path(folder).glob("*.txt"))
    async with polysketch.AsyncClient(servers) as client:
        replicas = len(await client.health())
        slots = asyncio.Semaphore(replicas * (await client.info()).limits.max_sequences)

        async def score(path: pathlib.Path) -> polysketch.Score:
            async with slots:
                return await client.score(path.read_text(encoding="utf-8"), logprobs=False)

        scores = await asyncio.gather(*map(score, paths))
    for path, result in zip(paths, scores, strict=True):
        print(f"{result.perplexity:12.4f}  {result.tokens:10} tokens  {path.name}")
    predicted = sum(max(result.tokens - 1, 0) for result in scores)
    mean = math.exp(-sum(result.logprob_sum for result in scores) / max(predicted, 1))
    print(f"{mean:12.4f}  {sum(result.tokens for result in scores):10} tokens  all")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
