"""Prints one random line of the code with its function, for the house test (style.md, 11).

Answer from one screen: which room, which thread, who owns the memory it touches, what happens if it fails, and which
test dies if the line is deleted.
"""
import random
import subprocess



def functions(path):
    """(first, last) line numbers of each function body in Linux brace style."""
    with open(path, encoding="ascii", errors="replace") as f:
        lines = f.read().splitlines()
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i - 1
            while start > 0 and lines[start - 1] and not lines[start - 1].endswith((";", "}", "*/")):
                start -= 1
        elif line == "}" and start is not None:
            yield lines, start, i
            start = None


def main():
    listed = subprocess.run(["git", "ls-files", "*.c"], check=True, capture_output=True, text=True).stdout.split()
    found = []
    for path in listed:
        if not path.startswith("tests/"):
            for lines, first, last in functions(path):
                found += [(path, lines, first, last, i) for i in range(first + 2, last) if len(lines[i].strip()) > 3]
    path, lines, first, last, chosen = random.choice(found)
    print(f"{path}:{chosen + 1}")
    for i in range(first, last + 1):
        print(f"{'>' if i == chosen else ' '} {i + 1:5} {lines[i]}")


if __name__ == "__main__":
    main()
