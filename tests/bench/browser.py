"""A headless Chromium over a page on this machine: what it says on its console, what it asks for, how it lays the page out."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip

# Loads the page into a frame of each width and tells what a person would see of it.
MEASURING = """<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,"><body><script>
const widths = %s, told = {};
function measure(width) {
  return new Promise(done => {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    frame.onload = () => {
      const page = frame.contentDocument, view = frame.contentWindow;
      const figures = [...page.querySelectorAll("figure svg")].map(svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        const sizes = [...svg.querySelectorAll("text")].map(text => scale * parseFloat(view.getComputedStyle(text).fontSize));
        return {key: svg.closest("figure").id, width: svg.getBoundingClientRect().width,
                height: svg.getBoundingClientRect().height, smallest: Math.min(...sizes), texts: sizes.length};
      });
      const wide = [...page.body.querySelectorAll("*")].filter(
        element => element.getBoundingClientRect().right > width + 1 && !element.closest(".wide, .tokens"));
      const foreign = [...page.querySelectorAll("*")].filter(
        element => /^(SCRIPT|IMG|IFRAME|OBJECT|EMBED|FORM|BASE)$/i.test(element.tagName) ||
                   [...element.attributes].some(attribute => attribute.name.startsWith("on")));
      const start = elements => elements.slice(0, 5).map(element => element.outerHTML.slice(0, 120));
      told[width] = {scrolls: page.documentElement.scrollWidth > width, figures, wide: start(wide),
                     foreign: start(foreign), title: page.title};
      done();
    };
    frame.src = "index.html";
    document.body.append(frame);
  });
}
(async () => {
  for (const width of widths) await measure(width);
  document.body.innerHTML = "<pre>" + JSON.stringify(told).replaceAll("&", "&amp;").replaceAll("<", "&lt;") + "</pre>";
})();
</script>"""


class Visit(NamedTuple):
    """What a browser made of a page. ``console``: its lines; ``asked``: paths that were asked for; ``layout``: by width."""

    console: list[str]
    asked: list[str]
    layout: dict[str, Any]


def visit(folder: Path, profile: Path, widths: tuple[int, ...] = (360, 768, 1280)) -> Visit:
    """Open ``index.html`` of a folder at several widths."""
    with _serving(folder, MEASURING % json.dumps(widths)) as (address, asked):
        done = run(profile, "--virtual-time-budget=20000", "--dump-dom", f"{address}/measure.html")
    layout = re.search("<pre>(.*)</pre>", done.stdout, re.DOTALL)
    assert layout, (done.stdout[:500], done.stderr[-2000:])
    told = json.loads(layout[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(console, [path for path in asked if path != "/measure.html"], told)


def run(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the browser to its end."""
    assert CHROMIUM
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


def print_out(folder: Path, profile: Path, file: Path) -> bytes:
    """Print ``index.html`` of a folder and return the PDF."""
    with _serving(folder, "") as (address, _):
        run(profile, "--no-pdf-header-footer", f"--print-to-pdf={file}", f"{address}/index.html")
    return file.read_bytes()


@contextmanager
def _serving(folder: Path, measuring: str) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path == "/measure.html":
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(measuring.encode())
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
