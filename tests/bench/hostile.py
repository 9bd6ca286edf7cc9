"""Texts of models, corpora and plans that try to be more than text."""

WORDS = (
    "<script>document.title = 'owned'</script>",
    '"><img src=x onerror=document.title="owned">',
    "</td></table></main>",
    "\u202edrow\u202c",
    "\x00\x1b[31m\x07",
    "\ud83d",
    "{{ 7 * 7 }}{% raw %}",
    "]]>&lt;&#60;",
    "\u2028\ufffe\u0085",
    "https://example.org/x.js",
    "e\u0301\u200d\U0001f469\u200d\U0001f680",
    "\u0633\u0644\u0627\u0645",
    "$\\frac{1}{$",
    "\n\n",
)
"""What a model may write."""

NAMES = ("plain <b>", "again $\\alpha$", "<script>x</script>\u202e", "dr\x00aft \ud800" + "y" * 300, "lib {{ 1 }}")
"""Of arms: plain decoding, the control, two strategies, transformers."""

STRATA = (f"</h3>{WORDS[0]}", WORDS[1], "a\x07\u202e\ud800", "a_very_long_name_of_a_stratum_" * 7)
TITLE = f"</h3>{WORDS[0]}\x07"
"""Begins the name of a prompt."""
