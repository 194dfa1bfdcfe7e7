# shellcheck shell=sh
# The server may be any: it is the client that users run in a box.
mkdir -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub ~/.ssh/authorized_keys
dropbearkey -t ed25519 -f host >&2
dropbear -F -E -s -r host -p 127.0.0.1:2222 2>log &
until grep -q 'Not backgrounding' log; do kill -0 $! || { cat log >&2; exit 1; }; done
options="-i key -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
# shellcheck disable=SC2086 # several words
ssh $options -p 2222 127.0.0.1 'echo hello from a session'
echo copied >source
# shellcheck disable=SC2086 # several words
scp -q -O $options -P 2222 source 127.0.0.1:/tmp/work/target
cat target
