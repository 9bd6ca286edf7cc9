"""A certificate as a page to read: one HTML file that needs nothing else, on a phone and on paper too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from specframe.testing.certificate import Certificate, Check

_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --quiet: #6e7781; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid; padding: .2rem 1rem; } .certified { border-color: var(--good); }
.not { border-color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem .35rem 0; text-align: left; vertical-align: top; }
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: bold; } .noted, .skipped { color: var(--quiet); }
code { font-size: .85em; overflow-wrap: anywhere; } details { margin-top: .2rem; } summary { color: var(--quiet); }
@media print { details > * { display: block; } body { font-size: 10pt; max-width: none; } tr { break-inside: avoid; } }
"""


def page(certificate: Certificate) -> str:
    """Return a certificate as one self-contained HTML text, the verdict first."""
    kind = "certified" if certificate.is_certified else "not"
    title = f"{certificate.subject}: {certificate.verdict}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict {kind}">{escape(certificate.sentence)}</p>',
        f"<p>Made {escape(certificate.made)} in {certificate.seconds:.0f} s by specframe "
        f"{escape(certificate.versions.get('specframe', ''))}, plan {escape(str(certificate.plan.get('name')))}.</p>",
        *_section("What was shown", _terms(certificate.classes) if certificate.classes else "<p>Nothing.</p>"),
        *(_section("What was not shown", _items(certificate.missing)) if certificate.missing else ()),
        *_section("Checks", _checks(certificate.checks)),
        *_section("What was certified", _terms(certificate.about)),
        *_section("The plan, fixed before the run", _terms(certificate.plan)),
        *_section("Versions", _terms(certificate.versions)),
        *(_section("Manifests", _terms(certificate.manifests)) if certificate.manifests else ()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _section(title: str, body: str) -> tuple[str, str]:
    return f"<h2>{escape(title)}</h2>", body


def _checks(checks: Iterable[Check]) -> str:
    rows = [
        f'<tr><td>{escape(check.name)}</td><td class="{check.status}">{check.status}</td>'
        f"<td>{escape(check.told)}{_details(check)}</td></tr>"
        for check in checks
    ]
    head = "<tr><th>check</th><th>outcome</th><th>what was found</th></tr>"
    return f'<div class="wide"><table>\n{head}\n' + "\n".join(rows) + "\n</table></div>"


def _details(check: Check) -> str:
    shown = {**check.figures, "seconds": check.seconds}
    tests = {f"p-value, {what}": f"{values['p']:.3g} (adjusted {values['adjusted']:.3g}, {values['num_values']} values)"
             for what, values in check.p_values.items()}  # fmt: skip
    return f"<details><summary>figures</summary>{_terms({**tests, **shown})}</details>"


def _terms(values: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><th>{escape(name)}</th><td><code>{escape(_spell(value))}</code></td></tr>"
        for name, value in values.items()
    ]
    return '<div class="wide"><table>' + "".join(rows) + "</table></div>"


def _items(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
