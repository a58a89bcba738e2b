"""The npm package openai against the shipped model. openai_client.mjs has the checks and prints a line for each, and the sum."""

import os
import subprocess
import sys

from harness import LATHE, MODEL, NODE_22, ROOT, Server, only_loopback

PROGRAM = os.path.join(ROOT, "tests/server/clients/openai_client.mjs")

if __name__ == "__main__":
    only_loopback()
    with Server(LATHE, MODEL) as s:
        base = f"http://127.0.0.1:{s.port}/v1"
        sys.exit(subprocess.run([NODE_22, PROGRAM, base, os.path.join(ROOT, "build/npm"), *sys.argv[1:]]).returncode)
