"""The prompts of a training corpus: read from a file, or synthetic; none that is sealed for evaluation.

Knows texts and digests, and no model. The synthetic ones were written for specframe; Apache-2.0, as the code. Their first words
matter as much as they do: the target goes on from them to prompts of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.errors import InvalidRequest, described

_DIGEST = re.compile("[0-9a-f]{64}")

_THINGS = (
    "a bicycle", "sourdough bread", "a thunderstorm", "a lighthouse", "compound interest", "photosynthesis",
    "a chess opening", "a vegetable garden", "the water cycle", "a job interview", "a wedding speech", "jet lag",
    "a solar panel", "a violin", "the French Revolution", "an electric car", "a coral reef", "a rental contract",
    "a sleep routine", "a telescope", "a budget", "a marathon", "machine learning", "a birthday party",
    "an earthquake", "a library", "the immune system", "a campfire", "a stock market crash", "a houseplant",
    "recursion", "a sailing boat", "black holes", "a cover letter", "public transport", "a first aid kit", "yoga",
    "the Silk Road", "a bee colony", "a database index", "mountain weather", "a podcast", "glaciers", "an apology",
    "a bridge", "the number pi", "a coffee shop", "a broken heart", "tides", "a web server", "a lawn", "democracy",
)  # fmt: skip
_TASKS = (
    "Explain {} to a ten-year-old.", "Write a short story about {}.",
    "What are the advantages and disadvantages of {}?", "Give me five facts about {}.", "Write a poem about {}.",
    "How does one get started with {}?", "Describe {} in one paragraph.", "Write an email to a friend about {}.",
    "What is the history of {}?", "Compare {} with something similar.",
    "Imagine that you are {}. Introduce yourself.", "List common mistakes people make with {}.",
    "Write a dialogue between two people who disagree about {}.", "What would the world be like without {}?",
    "Make a step-by-step plan that involves {}.", "Write a product review of {}.",
    "How is {} connected to mathematics?", "Summarise what an expert would say about {}.",
    "Write a Python function that has to do with {}.", "What questions should I ask about {}?",
    "Write a blog post about {} for travellers.", "Is {} overrated? Argue both sides.",
    "Write three riddles about {}.", "Tell me a joke about {} and explain it.", "What is the science behind {}?",
    "Rewrite this in a formal tone: I really like {}.", "Design a lesson about {} for a school class.",
    "Why do people like {}?",
    "Calculate what {} costs a family in a year, step by step.", "Solve this riddle: what have {} and a clock in common?",
    "If {} takes three hours and a break takes twenty minutes, how long does it all take?",
    "How many different ways are there to rank five kinds of {}?", "A shop sells {} at a loss. How can that pay?",
    "Implement a class in Java that models {}.", "Write a SQL query that counts everything about {}.",
    "Create a regular expression that finds the word for {}.", "My code about {} is slow. How do I find out why?",
    "Translate the following into French: I would like to know more about {}.",
    "Summarize the following text in two sentences: {} is older than most people think.",
    "Extract all names and dates from this note about {}.", "Classify these reviews of {} as positive or negative.",
    "Fix the grammar of this sentence: me and him was talking of {}.", "Make a table with three rows about {}.",
    "Return a JSON object that describes {}.", "Act as a teacher and examine me about {}.",
    "You are a travel guide. Tell me about {}.", "Suppose that {} were free for everybody. What would change?",
    "Given what we know about {}, what will it be like in fifty years?", "When was {} first mentioned?",
    "Who should know about {}, and why?", "Where can I learn more about {}?", "Which is better, {} or a good book?",
    "Should children learn about {} at school?", "Can you recommend something to a beginner who is interested in {}?",
    "Could you explain the difference between {} and its opposite?", "Do I need a licence for {}?",
    "Please help me to understand {}.", "I am worried about {}. What should I do?",
    "My friend and I argue about {}. Who is right?", "Let's talk about {}.", "Provide an overview of {}.",
    "Create a slogan for {}.", "Draft a letter of complaint about {}.", "Analyze the economics of {}.",
    "Discuss the ethics of {}.", "Identify the main parts of {}.", "Define {} in your own words.",
    "Suggest a title for a book about {}.", "Find the mistake: {} is always blue, and blue things are cold.",
    "Prove or disprove that {} is necessary.", "Outline a talk of ten minutes about {}.",
)  # fmt: skip


def synthetic_prompts(seed: int) -> Iterator[str]:
    """Give every pairing of task and thing once, in an order that the seed decides."""
    pairs = list(itertools.product(_TASKS, _THINGS))
    random.Random(seed).shuffle(pairs)
    return (task.format(thing) for task, thing in pairs)


def read_prompts(path: Path) -> list[str]:
    """Read prompts, one a line: a JSON object with ``prompt`` (``.jsonl``), else the line itself; empty lines are skipped.

    Raises ``InvalidRequest`` with the number of the line.
    """
    lines = [(number, line) for number, line in enumerate(_lines("prompts", path), 1) if line.strip()]
    is_json = path.suffix.lower() == ".jsonl"
    prompts = [_json_prompt(path, number, line) if is_json else line for number, line in lines]
    if not prompts:
        raise InvalidRequest("prompts", "must hold at least one prompt", path.name)
    return prompts


def _json_prompt(path: Path, number: int, line: str) -> str:
    rule = "must hold JSON objects with a text 'prompt', one a line"
    try:
        found = json.loads(line)
        prompt = found["prompt"]
        is_text = isinstance(prompt, str) and bool(prompt.strip())
        prompt_digest(prompt if is_text else "")  # half of a surrogate pair is no text
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidRequest("prompts", rule, f"{path.name}, line {number}", described(error)) from error
    if not is_text:
        raise InvalidRequest("prompts", rule, f"{path.name}, line {number}", f"'prompt' is {prompt!r}")
    return str(prompt)


def _lines(name: str, path: Path) -> list[str]:
    """Return a file's lines; other characters that end a line somewhere may stand in a prompt."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(name, f"must be a file that can be read ({error.strerror})", path.name) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, f"must be a UTF-8 file ({error.reason} at byte {error.start})", path.name) from error
    return text.split("\n")


def prompt_digest(prompt: str) -> str:
    """Return the SHA-256 of a prompt without white space around it, as hexadecimal digits."""
    return hashlib.sha256(prompt.strip().encode()).hexdigest()


def read_sealed(path: Path) -> frozenset[str]:
    """Read a list of digests of prompts that are kept for evaluation, one a line. Raises ``InvalidRequest``."""
    lines = [(number, line.strip().lower()) for number, line in enumerate(_lines("sealed", path), 1) if line.strip()]
    wrong = next(((number, line) for number, line in lines if not _DIGEST.fullmatch(line)), None)
    if wrong is not None:
        raise InvalidRequest(
            "sealed",
            f"must hold SHA-256 digests of 64 hexadecimal digits, one a line, and does not in line {wrong[0]}",
            wrong[1][:80],
        )
    if not lines:
        raise InvalidRequest("sealed", "must hold at least one digest", path.name)
    return frozenset(line for _, line in lines)


def require_unsealed(prompts: Iterable[str], sealed: frozenset[str]) -> None:
    """Raise ``InvalidRequest`` if a prompt is sealed for evaluation."""
    found = [index for index, prompt in enumerate(prompts) if prompt_digest(prompt) in sealed]
    if found:
        raise InvalidRequest(
            "prompts",
            "must not be among those sealed for evaluation",
            f"{len(found)}, the first being number {found[0] + 1}",
            "leave them out: a draft that has seen them cannot be judged by them",
        )
