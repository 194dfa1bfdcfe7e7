# shellcheck shell=sh
# shellcheck disable=SC3045 # dash, bash and busybox have -c
ulimit -c 0
echo shell
python3 -c 'import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("python")'
