"""Installs only the Python sources of a wheel that is mostly binaries, by reading their byte ranges: python wheel_sources.py vllm==0.33.0 SHA256

SHA256 is that of the wheel's RECORD, which has the hash of every file; all are checked. pip finds the wheel, so its index and proxies count. The package
ends up beside the interpreter's other ones, unmodified but for what is left out: compiled modules and data.
"""

import base64
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import zipfile

GAP = 1 << 18  # ranges nearer than this are read in one piece


class RemoteFile(io.RawIOBase):
    """A file behind HTTP as zipfile reads it: the pieces that `want` read before, and single ranges for the rest."""

    def __init__(self, url):
        self.url, self.position, self.pieces = url, 0, []
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=0-0"}), timeout=180) as answer:
            if answer.status != 206:
                raise SystemExit(f"wheel_sources: the package index gives {url} only whole; install the package with pip instead")
            self.size = int(answer.headers["Content-Range"].rsplit("/", 1)[1])

    def fetch(self, begin, end):
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={begin}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=180) as answer:
            return answer.read()

    def want(self, ranges):
        merged = []
        for begin, end in sorted(ranges):
            if merged and begin - merged[-1][1] <= GAP:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([begin, end])
        self.pieces = [(begin, self.fetch(begin, end)) for begin, end in merged]

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        self.position = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence] + offset
        return self.position

    def read(self, size=-1):
        begin = self.position
        end = self.size if size < 0 else min(self.size, begin + size)
        self.position = end
        for at, data in self.pieces:
            if at <= begin and end <= at + len(data):
                return data[begin - at:end - at]
        return self.fetch(begin, end) if end > begin else b""


def wheel_address(requirement):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--no-deps",
                        "--only-binary", ":all:", "--report", report, requirement], check=True)
        return json.loads(report.read_text())["install"][0]["download_info"]["url"]


def wanted(name):
    return name.endswith(".py") or ".dist-info/" in name


def main(requirement, record_hash):
    remote = RemoteFile(wheel_address(requirement))
    remote.want([(remote.size - (1 << 21), remote.size)])  # the directory
    archive = zipfile.ZipFile(remote)
    entries = [entry for entry in archive.infolist() if wanted(entry.filename) and not entry.is_dir()]
    remote.want([(e.header_offset, e.header_offset + e.compress_size + len(e.filename) + 1024) for e in entries])
    data = {entry.filename: archive.read(entry) for entry in entries}
    record = next(name for name in data if name.endswith(".dist-info/RECORD"))
    if hashlib.sha256(data[record]).hexdigest() != record_hash:
        raise SystemExit(f"wheel_sources: {record} has the hash {hashlib.sha256(data[record]).hexdigest()}, wanted {record_hash}")
    hashes = {name: digest for name, digest, _ in (line.rsplit(",", 2) for line in data[record].decode().splitlines())}
    for name, content in data.items():
        digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if name != record and hashes[name] != digest:
            raise SystemExit(f"wheel_sources: {name} has the hash {digest}, its RECORD says {hashes[name]}")
    target = pathlib.Path(sysconfig.get_path("purelib"))
    for name, content in sorted(data.items(), key=lambda item: item[0] == record):  # RECORD last: with it the package counts as installed
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"wheel_sources: {requirement}: {len(data)} files, {sum(map(len, data.values())) >> 20} MB, of a wheel of {remote.size >> 20} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
