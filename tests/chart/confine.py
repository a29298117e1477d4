"""Runs a program under the system call filter of a systemd unit: confine.py UNIT -- PROGRAM [ARG]...

What systemd makes of SystemCallFilter=, RestrictNamespaces= and MemoryDenyWriteExecute= is libseccomp's work; here it is asked
directly, so that the filter is tried where systemd does not run. A call outside of it kills the process with SIGSYS, as in
systemd's default. The sets come from `systemd-analyze syscall-filter`.
"""
import ctypes
import os
import subprocess
import sys

KILL, ALLOW = 0x80000000, 0x7FFF0000
NR_ERROR = -1


def members(name):
    """System calls of a set, nested ones included."""
    out = set()
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], check=True, capture_output=True,
                          text=True).stdout
    for line in text.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            out |= members(word)
        elif word and not word.startswith("#"):
            out.add(word)
    return out


def allowed(unit):
    """The calls that a unit's SystemCallFilter= lines leave."""
    out = None
    with open(unit, encoding="ascii") as f:
        for line in f:
            if not line.startswith("SystemCallFilter="):
                continue
            value = line.strip().split("=", 1)[1]
            deny = value.startswith("~")
            names = set()
            for word in value.lstrip("~").split():
                names |= members(word) if word.startswith("@") else {word}
            out = names if out is None and not deny else (out or set()) - names if deny else out | names
    assert out, f"{unit} has no SystemCallFilter"
    return out


def confine(names):
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    context = lib.seccomp_init(KILL)
    added = 0
    for name in sorted(names):
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number != NR_ERROR and lib.seccomp_rule_add(context, ALLOW, number, 0) == 0:
            added += 1
    assert added > 100, added
    assert lib.seccomp_load(context) == 0  # sets no_new_privs, too


def main():
    unit, dashes, program = sys.argv[1], sys.argv[2], sys.argv[3:]
    assert dashes == "--" and program
    confine(allowed(unit))
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
