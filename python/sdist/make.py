"""Makes tensorcast_store-VERSION.tar.gz. Where no wheel fits, pip builds it and shows the reason (refusal.py).

    python3 make.py VERSION GLIBC OUT_DIR
"""

import io
import pathlib
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent


def make(version, glibc, out_dir):
    folder = f"tensorcast_store-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: tensorcast-store\nVersion: {version}\nLicense: Apache-2.0\n",
        "pyproject.toml": (HERE / "pyproject.toml").read_text(),
        "refusal.py": (HERE / "refusal.py").read_text().replace('GLIBC = "2.36"', f'GLIBC = "{glibc}"'),
    }
    made = pathlib.Path(out_dir) / f"{folder}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(text.encode()), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made


if __name__ == "__main__":
    print(make(*sys.argv[1:]))
