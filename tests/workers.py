"""A plugin that is installed in a folder, whose drafter does what its options say: right things, and every wrong one."""

from __future__ import annotations

from pathlib import Path

PLUGIN = """
import json, os, re, signal, subprocess, sys, time
import attrs, specframe

@attrs.frozen
class Options:
    continuation: tuple[int, ...] = ()  # of the prompt; offered as far as there is room
    fault: str = "none"
    method: str = "propose"             # the call that the fault is in
    at: int = 0                         # how many calls of it go well in a process
    once: str = ""                      # a file: with it there the fault does not occur; it is made by the fault
    notes: str = ""                     # a file: one JSON line for every call

class Scripted:
    def __init__(self, options, facts):
        self.options, self.facts, self.num_calls = options, facts, 0
        self.note("made", pid=os.getpid(), facts=attrs.asdict(facts, filter=lambda field, value: field.name != "stop_ids"))
        self.called("make")

    def open(self, request):
        self.note("open", request=repr(request))
        self.called("open")
        return Session(self, request)

    def reset(self):
        self.note("reset")
        self.called("reset")

    def close(self):
        self.note("drafter_close")
        self.called("drafter_close")

    def note(self, call, **facts):
        if self.options.notes:
            with open(self.options.notes, "a") as file:
                file.write(json.dumps({"call": call, **facts}) + "\\n")

    def called(self, method, round=None):
        options = self.options
        if method != options.method or options.fault == "none":
            return
        self.num_calls += 1
        if self.num_calls <= options.at or (options.once and os.path.exists(options.once)):
            return
        if options.once:
            open(options.once, "w").close()
        FAULTS[options.fault](round)

class Session:
    def __init__(self, drafter, request):
        self.drafter, self.num_prompt = drafter, len(request.prompt_ids)

    def propose(self, round):
        self.drafter.note("propose", context=list(round.context), room=round.room, index=round.index)
        start = len(round.context) - self.num_prompt
        for token in self.drafter.options.continuation[start:]:
            if not round.offer(token):
                break
        self.drafter.called("propose", round)

    def commit(self, commit):
        self.drafter.note("commit", **attrs.asdict(commit))
        self.drafter.called("commit")

    def close(self):
        self.drafter.note("close")
        self.drafter.called("close")

def fail(kind):
    def call(round):
        raise kind("what it says about the prompt")
    return call

def spin(round):
    while True:
        pass

def be_deaf(round):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):  # some are the C library's own
            pass
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    spin(round)

def flood(round):
    data = frame(request=0, sequence=0, epoch=0, ids=[]) * 2000
    while True:
        os.write(int(sys.argv[1]), data)

def leave_a_child(round):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, file=open(os.environ["CHILD_FILE"], "w"), flush=True)
    time.sleep(600)

def send(data):
    return lambda round: os.write(int(sys.argv[1]), data)

def frame(**fields):
    data = json.dumps(fields).encode()
    return len(data).to_bytes(4, "big") + data

FAULTS = {
    "raise": fail(ValueError),
    "base": fail(BaseException),
    "exhausted": fail(specframe.DrafterExhausted),
    "system_exit": fail(SystemExit),
    "exit": lambda round: os._exit(3),
    "kill": lambda round: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda round: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda round: time.sleep(600),
    "nap": lambda round: time.sleep(0.3),
    "spin": spin,
    "lock": lambda round: re.match("(a+)+$", "a" * 64 + "b"),  # never gives the interpreter's lock back
    "deaf": be_deaf,
    "flood": flood,
    "child": leave_a_child,
    "bad_id": lambda round: round.offer(10**9),
    "draw": lambda round: round.draw([0.0]),
    "print": lambda round: print("to standard output", flush=True),
    "garbage": send(b"\\x00\\x00\\x00\\x03abc"),
    "too_long": send(b"\\xff\\xff\\xff\\xffabc"),
    "half": send(b"\\x00\\x00\\x03\\xe8abc"),
    "stale": send(frame(request=0, sequence=1, epoch=0, ids=[1, 1, 1])),
    "future": send(frame(request=1, sequence=10**6, epoch=0, ids=[1, 1, 1])),
    "bad_answer": send(frame(request=1, sequence=1, epoch=0, ids="all of them")),
    "close_connection": lambda round: os.close(int(sys.argv[1])),
}

@specframe.hookimpl
def specframe_register_drafters(register):
    register("scripted", Scripted, options=Options, needs=specframe.Needs(), api=1)
    for name, needs in {
        "draws": specframe.Needs(draws=True),
        "reads_weights": specframe.Needs(views=frozenset({"head"})),
        "reads_features": specframe.Needs(features=specframe.Features(hidden_size=4)),
        "reads_grammar": specframe.Needs(grammar=True),
        "needs_tokenizer": specframe.Needs(tokenizer="same"),
    }.items():
        register(name, Scripted, options=Options, needs=needs, api=1)
"""


def install(folder: Path, *, name: str = "scripted", source: str = PLUGIN) -> None:
    """Put a distribution with one plugin into a folder; whoever has the folder on the path has it installed."""
    (folder / f"{name}_plugin.py").write_text(source, encoding="utf-8")
    info = folder / f"{name}_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[specframe]\n{name} = {name}_plugin\n")
