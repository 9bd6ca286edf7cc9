"""Hold the output to a JSON Schema: what the schema forces is proposed and not guessed, so it costs few target calls.

Run it as ``python examples/constrained_json.py``; it needs ``specframe[grammar]``.
"""

from __future__ import annotations

import json

import specframe

TEXT = "Ann Lee is 31 years old. She lives in Oslo, where she works as a pilot, and she has two cats."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string", "maxLength": 30},
        "occupation": {"enum": ["nurse", "pilot", "teacher", "other"]},
    },
    "required": ["name", "age", "city", "occupation"],
    "additionalProperties": False,
}
PROMPT = [{"role": "user", "content": f"{TEXT}\n\nWho is this about? Answer as JSON with name, age, city, occupation."}]


def main() -> None:
    engine = specframe.load("demo", strategy="grammar")
    result = engine.generate(PROMPT, json_schema=SCHEMA, max_new_tokens=128)

    print(json.dumps(json.loads(result.text), indent=2, ensure_ascii=False))
    stats = result.stats
    print(f"{stats.num_tokens} tokens in {stats.num_target_calls} target calls")
    for name, drafter in stats.drafters.items():
        print(f"  {name}: {drafter.num_accepted} of {drafter.num_proposed} proposed tokens accepted")


if __name__ == "__main__":
    main()
