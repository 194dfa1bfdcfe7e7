# shellcheck shell=sh
export GNUPGHOME=/tmp/gnupg
mkdir -m 700 "$GNUPGHOME"
gpg -q --batch --passphrase '' --quick-gen-key 'box <box@box.test>' future-default default never
echo message >message
gpg -q --batch --sign message
gpg -q --batch --status-fd 1 --verify message.gpg | sed -n 's/GOODSIG [0-9A-F]*/GOODSIG/p'
echo decrypted | gpg -q --batch --trust-model always -r box@box.test --encrypt >secret
gpg -q --batch --decrypt secret
gpgconf --kill all
