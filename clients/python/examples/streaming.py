"""Streams a completion to the terminal.

    streaming.py "It was late" [MAX_TOKENS]

The environment variable POLYSKETCH_SERVER names the server. Ctrl-C cancels the completion on the server too.
"""

import sys

import polysketch


def main(prompt: str, max_tokens: int = 40) -> None:
    with polysketch.Client() as client, client.complete(prompt, max_tokens=max_tokens, temperature=0.7) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
        print()
        result = stream.result()
    speed = result.usage.completion_tokens / max(result.timings.decode_seconds, 1e-9)
    print(f"{result.finish_reason}, seed {result.seed}, {speed:.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
