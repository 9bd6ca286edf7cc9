"""Answer the prompts of a JSON Lines file, with progress; killed and run again, it goes on where it was.

Run it as ``python examples/batch_jsonl.py QUESTIONS ANSWERS [MODEL]``. Line n of the answers belongs to line n of the
questions: an answer is written when it is complete, and half a line, which a kill may leave, is written anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import specframe

MAX_NEW_TOKENS = 64


def main(questions: Path, answers: Path, model: str = "demo") -> None:
    lines = [line for line in questions.read_text(encoding="utf-8").split("\n") if line.strip()]
    num_done = take_up(answers)
    engine = specframe.load(model, strategy="prompt_lookup")
    with answers.open("a", encoding="utf-8") as file:
        for number in track(range(num_done, len(lines)), "answering", console=Console(stderr=True)):
            file.write(json.dumps({"line": number + 1, **answer(engine, lines[number])}) + "\n")
            file.flush()


def take_up(answers: Path) -> int:
    """Return how many answers there are, after cutting off half a line."""
    if not answers.exists():
        return 0
    whole, newline, _ = answers.read_bytes().rpartition(b"\n")
    with answers.open("r+b") as file:
        file.truncate(len(whole + newline))
    return (whole + newline).count(b"\n")


def answer(engine: specframe.Engine, line: str) -> dict[str, Any]:
    """Return the answer to a line, or what is wrong with it: one bad line does not end a batch."""
    try:
        messages = [{"role": "user", "content": json.loads(line)["prompt"]}]
        result = engine.generate(messages, max_new_tokens=MAX_NEW_TOKENS)
        return {"text": result.text, "finish_reason": result.finish_reason}
    except (specframe.InvalidRequest, ValueError, KeyError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    here = Path(__file__).parent
    given = sys.argv[1:] or [str(here / "questions.jsonl"), "answers.jsonl"]
    main(Path(given[0]), Path(given[1]), *given[2:])
