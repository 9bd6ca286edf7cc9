"""Chat with the demo model: text comes as it is made, and each turn reuses what the model has read of the ones before.

Run it as ``python examples/streaming_chat.py``; an empty line ends the chat, Ctrl-C an answer.
"""

from __future__ import annotations

import specframe

MAX_NEW_TOKENS = 256


def main() -> None:
    engine = specframe.load("demo", strategy="prompt_lookup")
    messages: list[dict[str, str]] = []
    while text := ask():
        messages.append({"role": "user", "content": text})
        with engine.stream(messages, max_new_tokens=MAX_NEW_TOKENS, temperature=0.5) as stream:
            try:
                for piece in stream:
                    print(piece.text, end="", flush=True)
            except KeyboardInterrupt:
                stream.close()
        result = stream.result
        messages.append({"role": "assistant", "content": result.text})
        print(f"\n[{result.stats.num_tokens} tokens, the first after {result.stats.first_token_s:.2f} s]")


def ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    main()
