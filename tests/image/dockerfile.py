"""Builds a Dockerfile without a container engine: every instruction a layer, as overlays over a debootstrap root.

A layer is a folder in the cache, named by the hash of what made it: the layer before, the instruction, and for COPY the
copied files. FROM debian:12 and debian:12-slim are `debootstrap --variant=minbase bookworm` with Debian's update and
security suites. Needs root (mount, chroot) and debootstrap. Understands FROM, RUN, COPY, WORKDIR, ENV, USER, CMD and
ARG-less files with one path list each; refuses the rest. Standard library only.
"""
import fnmatch
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time

SUITES = ("deb http://deb.debian.org/debian bookworm main\n"
          "deb http://deb.debian.org/debian bookworm-updates main\n"
          "deb http://deb.debian.org/debian-security bookworm-security main\n")
# Whom this machine trusts, for downloads inside a RUN; /run is a tmpfs there, so nothing of it stays in a layer.
HOST_BUNDLE, HOST_CA = "/etc/ssl/certs/ca-certificates.crt", "/run/host-ca.crt"
KEEP_DAYS = 14  # a layer that nobody used for so long is dropped; so the base is renewed now and then, too


def parse(text):
    """[(INSTRUCTION, arguments)], continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    out = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, rest = line.strip().split(None, 1)
            out.append((word.upper(), rest))
    return out


def ignored(patterns, path):
    """.dockerignore: the last pattern that matches the path or a parent of it decides."""
    out = False
    parents = [path[:m.start()] for m in re.finditer("/", path)] + [path]
    for p in patterns:
        negated, glob = p.startswith("!"), p.lstrip("!").rstrip("/")
        globs = [glob, glob[3:]] if glob.startswith("**/") else [glob]
        if any(fnmatch.fnmatch(part, g) for part in parents for g in globs):
            out = not negated
    return out


class Stage:
    def __init__(self, name):
        self.name, self.layers, self.workdir, self.env, self.user, self.cmd = name, [], "/", {}, "0:0", None
        self.key = ""


class Builder:
    def __init__(self, context, cache):
        self.context, self.cache = context, cache
        self.stages, self.built = [], 0
        os.makedirs(cache, exist_ok=True)

    def build(self, path):
        """The last Stage of a Dockerfile."""
        with open(os.path.join(self.context, path), encoding="utf-8") as f:
            for word, rest in parse(f.read()):
                handler = getattr(self, "do_" + word.lower(), None)
                assert handler, f"{path}: {word} is not understood"
                handler(rest)
        self.drop_old()
        return self.stages[-1]

    def drop_old(self):
        for name in os.listdir(self.cache):
            folder = os.path.join(self.cache, name)
            if os.path.getmtime(folder) < time.time() - KEEP_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)

    # ---- instructions ----

    def do_from(self, rest):
        words = rest.split()
        assert words[0] in ("debian:12", "debian:12-slim") and len(words) in (1, 3), rest
        stage = Stage(words[2] if len(words) == 3 else "")
        self.stages.append(stage)
        self.layer("base bookworm", self.debootstrap)

    def do_workdir(self, rest):
        self.stages[-1].workdir = rest
        self.layer(f"WORKDIR {rest}", lambda root: os.makedirs(root + rest, exist_ok=True))

    def do_env(self, rest):
        self.stages[-1].env.update(pair.split("=", 1) for pair in shlex.split(rest))

    def do_user(self, rest):
        self.stages[-1].user = rest

    def do_cmd(self, rest):
        self.stages[-1].cmd = rest

    def do_run(self, rest):
        stage = self.stages[-1]
        self.layer(f"RUN {stage.workdir} {rest}", lambda root: self.run(root, stage.workdir, stage.env, rest))

    def do_copy(self, rest):
        words = rest.split()
        source = None
        if words[0].startswith("--from="):
            source = next(s for s in self.stages if s.name == words.pop(0)[len("--from="):])
        what, to = words
        if source is not None:
            self.layer(f"COPY {source.key} {what} {to}", lambda root: self.copy_stage(source, what, root + to))
            return
        files = self.context_files(what)
        digest = hashlib.sha256()
        for name in files:
            with open(os.path.join(self.context, name), "rb") as f:
                digest.update(name.encode() + b"\0" + hashlib.sha256(f.read()).digest())
        into = os.path.normpath(os.path.join(self.stages[-1].workdir, to))
        self.layer(f"COPY {digest.hexdigest()} {what} {into}", lambda root: self.copy_context(what, files, root + into))

    # ---- layers ----

    def layer(self, text, make):
        """Adds a layer; make(root) fills it when the cache lacks it."""
        stage = self.stages[-1]
        stage.key = hashlib.sha256(f"{stage.key}\n{text}".encode()).hexdigest()[:24]
        folder = os.path.join(self.cache, stage.key)
        if not os.path.exists(os.path.join(folder, "complete")):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(os.path.join(folder, "diff"))
            print(f"# building: {text[:110]}", flush=True)
            if stage.layers:
                with Mounted(stage.layers, os.path.join(folder, "diff"), folder) as root:
                    make(root)
            else:
                make(os.path.join(folder, "diff"))
            self.built += 1
            with open(os.path.join(folder, "complete"), "w", encoding="utf-8") as f:
                f.write(text + "\n")
        stage.layers.append(os.path.join(folder, "diff"))
        os.utime(folder)

    @staticmethod
    def debootstrap(root):
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(root, "etc/apt/sources.list"), "w", encoding="ascii") as f:
            f.write(SUITES)
        shutil.rmtree(os.path.join(root, "var/cache/apt/archives"), ignore_errors=True)

    @staticmethod
    def run(root, workdir, env, command):
        base = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                "DEBIAN_FRONTEND": "noninteractive", "PIP_CERT": HOST_CA, "SSL_CERT_FILE": HOST_CA}
        script = ('set -e; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; touch "$1/etc/resolv.conf"; '
                  'mount --bind /etc/resolv.conf "$1/etc/resolv.conf"; mount -t tmpfs none "$1/run"; '
                  f'cp {HOST_BUNDLE} "$1{HOST_CA}"; '
                  'exec chroot "$1" /bin/sh -c \'cd "$0" && eval "$1"\' "$2" "$3"')
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", script, "sh", root, workdir, command],
                              env=dict(base, **env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-4000:]}"

    def context_files(self, what):
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=self.context, check=True,
                                capture_output=True, text=True).stdout.splitlines()
        with open(os.path.join(self.context, ".dockerignore"), encoding="utf-8") as f:
            patterns = [line.strip() for line in f if line.strip() and not line.startswith("#")]
        return sorted(n for n in listed if (what == "." or n == what) and os.path.isfile(os.path.join(self.context, n))
                      and not ignored(patterns, n))

    def copy_context(self, what, files, to):
        assert files, f"COPY {what}: nothing to copy"
        for name in files:
            target = os.path.join(to, name) if what == "." else to
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(self.context, name), target)

    @staticmethod
    def copy_stage(source, what, to):
        with Mounted(source.layers) as root:
            subprocess.run(["cp", "-a", f"{root}{what.rstrip('/')}/.", to.rstrip("/")], check=True)


class Mounted:
    """The layers as one folder; writable when `upper` is given."""

    def __init__(self, layers, upper=None, scratch=None):
        self.lower, self.upper = ":".join(reversed(layers)), upper
        self.scratch = scratch or os.path.join(os.path.dirname(layers[-1]), f"mount-{os.getpid()}")

    def __enter__(self):
        self.root, self.work = os.path.join(self.scratch, "root"), os.path.join(self.scratch, "work")
        for folder in (self.root, self.work):
            os.makedirs(folder, exist_ok=True)
        single = ":" not in self.lower and self.upper is None
        options = f"lowerdir={self.lower}" + (f",upperdir={self.upper},workdir={self.work}" if self.upper else "")
        subprocess.run(["mount", "--bind", self.lower, self.root] if single else
                       ["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        return self.root

    def __exit__(self, *exc):
        subprocess.run(["umount", self.root], check=True)
        os.rmdir(self.root)
        shutil.rmtree(self.work, ignore_errors=True)
        if self.upper is None:
            shutil.rmtree(self.scratch, ignore_errors=True)
