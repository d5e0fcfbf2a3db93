"""Reads the machine code of the kernels in a built library: their instructions, loops, registers and stacks.

cuobjdump and nvdisasm do the disassembling. They come from the CUDA toolkit, or from PyPI (requirements.txt, in .venv).
"""

import glob
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

_LABEL = re.compile(r"^([.$\w]+):$")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\(([^)]+)\)")


class Missing(Exception):
    """What this machine lacks to read machine code, in words."""


@dataclass
class Instruction:
    guard: str  # a predicate, or ""
    name: str  # with its suffixes: HMMA.16816.F32.BF16
    operands: str

    @property
    def target(self):
        found = _TARGET.search(self.operands)
        return found.group(1) if found else None


@dataclass
class Loop:
    """A natural loop: the numbers of its instructions."""

    body: set = field(default_factory=set)


@dataclass
class Kernel:
    name: str  # without namespaces and parameters: AttendTiles<64>
    registers: int = 0
    stack: int = 0  # bytes of local memory of a thread
    code: list = field(default_factory=list)
    loops: list = field(default_factory=list)

    def loops_with(self, name):
        """The loops that have an instruction `name` (or one of several) themselves, as lists of instructions, without those of inner loops that
        have one too."""
        holds = [loop.body for loop in self.loops if any(self.code[i].name.startswith(name) for i in loop.body)]
        own = [body - set().union(*(other for other in holds if other < body)) for body in holds]
        loops = [[self.code[i] for i in sorted(body)] for body in own]
        return [loop for loop in loops if any(instruction.name.startswith(name) for instruction in loop)]

    def in_loops(self):
        """The numbers of all instructions of loops, each once."""
        return sorted(set().union(*(loop.body for loop in self.loops)))


def _tool(name):
    # The wheels of PyPI put no script into .venv/bin.
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
    wheels = glob.glob(os.path.join(root, ".venv/lib/python3*/site-packages/nvidia/cu13/bin"))
    found = shutil.which(name, path=os.pathsep.join([*wheels, os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if found is None:
        raise Missing(f"no {name}: scripts/setup installs it into .venv; a whole CUDA toolkit has it too")
    return found


def _run(*command, folder=None):
    environment = dict(os.environ)
    environment["PATH"] = os.path.dirname(command[0]) + os.pathsep + environment.get("PATH", "")
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Missing(f"{' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


def short_name(demangled):
    """AttendTiles<64> of `void polysketch::cuda::AttendTiles<64>(...)`."""
    name = re.sub(r"\(anonymous namespace\)::|polysketch::(cuda::)?", "", demangled)
    name = re.sub(r"\((?:int|bool|long|unsigned)\)", "", name).replace("unsigned short", "Bf16")
    return name.removeprefix("void ").split("(")[0]


def _demangle(names):
    ended = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, map(short_name, ended.stdout.split("\n"))))


def parse(lines):
    """Returns the instructions of a section of nvdisasm, and the number of the instruction after each label."""
    code, labels = [], {}
    for line in lines:
        label = _LABEL.match(line)
        if label:
            labels[label.group(1)] = len(code)
            continue
        found = _INSTRUCTION.match(line)
        if found:
            code.append(Instruction(found.group(1) or "", found.group(2), found.group(3)))
    return code, labels


def _successors(code, labels, i):
    instruction = code[i]
    name = instruction.name.split(".")[0]
    after = [i + 1] if i + 1 < len(code) else []
    if name in ("EXIT", "RET", "KILL"):
        return after if instruction.guard else []
    if name in ("BRA", "JMP"):
        target = labels.get(instruction.target)
        # A target that is no label is the branch itself: what stands after the end of a kernel.
        always = not instruction.guard and ".DIV" not in instruction.name and not _conditional(instruction)
        return ([] if target is None or target >= len(code) else [target]) + ([] if always else after)
    return after  # a call returns


def _conditional(instruction):
    # `BRA P1, ...` and `BRA UP1, ...` have their predicate among the operands.
    return re.match(r"!?U?P\d", instruction.operands) is not None


def find_loops(code, labels):
    """The natural loops of what the first instruction reaches. Calls are not followed: a function that follows the kernel
    in its section (a division) is not part of a loop."""
    if not code:
        return []
    successors = [_successors(code, labels, i) for i in range(len(code))]
    predecessors = [[] for _ in code]
    order, seen, stack = [], {0}, [(0, iter(successors[0]))]
    while stack:  # depth first, without recursion
        node, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            order.append(node)
            stack.pop()
        elif following not in seen:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    order.reverse()
    for node in order:
        for following in successors[node]:
            predecessors[following].append(node)
    dominator = _dominators(order, predecessors)
    loops = {}
    for node in order:
        for head in successors[node]:
            if _dominates(dominator, head, node):
                body = loops.setdefault(head, Loop({head})).body
                _grow(body, node, predecessors)
    return list(loops.values())


def _dominators(order, predecessors):
    """The immediate dominators, as Cooper, Harvey and Kennedy compute them."""
    rank = {node: i for i, node in enumerate(order)}
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new = None
            for before in predecessors[node]:
                if before not in dominator:
                    continue
                new = before if new is None else _common(dominator, rank, before, new)
            if dominator.get(node) != new:
                dominator[node] = new
                changed = True
    return dominator


def _common(dominator, rank, a, b):
    while a != b:
        while rank[a] > rank[b]:
            a = dominator[a]
        while rank[b] > rank[a]:
            b = dominator[b]
    return a


def _dominates(dominator, head, node):
    while node != head and dominator[node] != node:
        node = dominator[node]
    return node == head


def _grow(body, node, predecessors):
    work = [node]
    while work:
        node = work.pop()
        if node not in body:
            body.add(node)
            work += predecessors[node]


def _resources(listing):
    """Registers and bytes of stack by mangled name."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", listing)
    return {name: (int(registers), int(stack) + int(local)) for name, registers, stack, local in found}


def kernels_of(library, architecture, wanted=lambda name: True):
    """The kernels of a library for one architecture whose short names `wanted` accepts; [] if it has no code for it."""
    cuobjdump, nvdisasm = _tool("cuobjdump"), _tool("nvdisasm")
    library = os.path.abspath(library)
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        _run(cuobjdump, "-arch", architecture, "-xelf", "all", library, folder=folder)
        for cubin in sorted(os.listdir(folder)):
            path = os.path.join(folder, cubin)
            resources = _resources(_run(cuobjdump, "-res-usage", path))
            if not resources:
                continue
            names = _demangle(sorted(resources))
            for section in re.split(r"^//-{9,} \.text\.", _run(nvdisasm, "-c", path), flags=re.M)[1:]:
                mangled = section.split(" ", 1)[0]
                if mangled not in resources or not wanted(names[mangled]):
                    continue
                code, labels = parse(section.split("\n"))
                registers, stack = resources[mangled]
                kernels.append(Kernel(names[mangled], registers, stack, code, find_loops(code, labels)))
    return kernels
