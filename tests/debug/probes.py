"""The library has the probes that perf and bpftrace look for: probes.py LIBTUTTI yes|no (whether it was built with <sys/sdt.h>)

Exits 77 (skipped) where it was not, or readelf is missing."""
import re
import shutil
import subprocess
import sys


def main():
    library, has_sdt = sys.argv[1:]
    if has_sdt == "no" or shutil.which("readelf") is None:
        print("skipped: " + ("there was no <sys/sdt.h> (Debian: systemtap-sdt-dev)" if has_sdt == "no" else "no readelf"))
        return 77
    notes = subprocess.run(["readelf", "-nW", library], check=True, capture_output=True, text=True).stdout
    probes = {}
    for note in notes.split("Provider: ")[1:]:
        fields = dict(line.strip().split(": ", 1) for line in ("Provider: " + note).splitlines() if ": " in line)
        assert fields["Provider"] == "tutti", note
        semaphore = int(re.search(r"Semaphore: (0x[0-9a-f]+)", note).group(1), 16)
        assert semaphore != 0, "a tool could not say that it is there"
        arguments = fields["Arguments"].split()
        assert probes.setdefault(fields["Name"], len(arguments)) == len(arguments)
    print(probes)
    assert probes == {"operation_begin": 4, "operation_end": 5}, notes
    return 0


if __name__ == "__main__":
    sys.exit(main())
