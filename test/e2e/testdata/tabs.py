# Opens tabs in the Chromium that listens on port 9222, waits until the script of each page has
# run, and prints how many did.
import json
import sys
import time
import urllib.parse
import urllib.request

wanted = int(sys.argv[1])
patience = time.monotonic() + 500


def ask(path, method="GET"):
    request = urllib.request.Request("http://127.0.0.1:9222/json/" + path, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def until(condition):
    while not condition() and time.monotonic() < patience:
        time.sleep(0.05)


def answers():
    try:
        return ask("version")
    except OSError:
        return None


def ready():
    return [tab for tab in ask("list") if tab["title"].startswith("ready")]


until(answers)
for i in range(wanted):
    script = f"const kept = []; for (let j = 0; j < 200; j++) kept.push(new Uint8Array(1e5).fill(j)); document.title = 'ready {i}'"
    ask("new?" + urllib.parse.quote(f"data:text/html,<script>{script}</script>"), "PUT")
until(lambda: len(ready()) == wanted)
print(len(ready()), "tabs")
