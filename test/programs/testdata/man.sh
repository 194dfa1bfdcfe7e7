# shellcheck shell=sh
# Without a configuration file of the host and without its manual pages.
cat >hello.1 <<'PAGE'
.TH HELLO 1
.SH NAME
hello \- greets
PAGE
: >config
man -C config -P cat -l hello.1 >out
grep -o '^HELLO(1)' out
grep -o 'hello - greets' out
