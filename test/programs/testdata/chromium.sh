# shellcheck shell=sh
cat >page.html <<'PAGE'
<html><head><title>box</title></head><body><p>1<p>2<p>3
<script>document.body.textContent = document.querySelectorAll("p").length + " paragraphs"</script></body></html>
PAGE
chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/profile --dump-dom "file://$PWD/page.html" 2>log || { cat log >&2; exit 1; }
