# shellcheck shell=sh
cat >numbers.py <<'PROGRAM'
import sqlite3, subprocess, sys
db = sqlite3.connect("numbers.db", timeout=60)
if len(sys.argv) == 1:
    print(*db.execute("pragma journal_mode = wal").fetchone())
    db.execute("create table numbers (n integer primary key)")
    # Four processes at once: each write takes byte-range locks.
    writers = [subprocess.Popen([sys.executable, __file__, str(i)]) for i in range(4)]
    assert [w.wait() for w in writers] == [0] * 4
    print(*db.execute("select count(*), sum(n) from numbers").fetchone())
    print(*db.execute("pragma integrity_check").fetchone())
else:
    first = int(sys.argv[1]) * 250 + 1
    for n in range(first, first + 250):
        with db:
            db.execute("insert into numbers values (?)", (n,))
PROGRAM
python3 numbers.py
