# shellcheck shell=sh
ssh-keygen -q -t ed25519 -N '' -C box -f key
eval "$(ssh-agent -s)" >&2
ssh-add -q key
ssh-add -l | sed 's/SHA256:[^ ]* //'
ssh-agent -k >&2
