# shellcheck shell=sh
# Between two file systems, with all that can be kept.
umask 022
mkdir -p tree/sub && echo hello >tree/sub/file && chmod 640 tree/sub/file && ln -s file tree/sub/link
cp -a tree ~/copied
stat -c '%a' ~/copied/sub/file
tar --xattrs --acls -cf - tree | tar --xattrs --acls -xpf - -C ~
stat -c '%a' ~/tree/sub/file
python3 -c 'import os, shutil
shutil.copytree("tree", os.path.expanduser("~/python"), symlinks=True)'
stat -c '%a' ~/python/sub/file
mv tree ~/moved
cat ~/moved/sub/link
