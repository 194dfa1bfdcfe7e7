# shellcheck shell=sh
echo hello | gzip >greeting
file greeting | cut -d, -f1
