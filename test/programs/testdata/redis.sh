# shellcheck shell=sh
# redis-server is the same program as redis-check-rdb, under another name.
ln -s "$(command -v redis-check-rdb)" redis-server
start() {
	./redis-server --port 6379 --bind 127.0.0.1 --save '' --logfile log &
	until redis-cli ping >/dev/null 2>&1; do kill -0 $! || { cat log >&2; exit 1; }; done
}
start
redis-cli set greeting hello
redis-cli get greeting
redis-cli eval 'for i = 1, 1000 do redis.call("incr", "count") end return tonumber(redis.call("get", "count"))' 0
# A background process writes the file that the next server reads.
redis-cli save
redis-cli shutdown nosave
wait
start
redis-cli get greeting
redis-cli shutdown nosave
