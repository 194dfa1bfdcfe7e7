# shellcheck shell=sh
mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal >log 2>&1 || { cat log >&2; exit 1; }
mariadbd --no-defaults --datadir="$PWD/data" --socket=/tmp/socket --bind-address=127.0.0.1 --innodb-flush-method=O_DIRECT_NO_FSYNC --innodb-use-native-aio=1 >log 2>&1 &
until mariadb --no-defaults -S /tmp/socket -u root -e 'select 1' >/dev/null 2>&1; do kill -0 $! || { cat log >&2; exit 1; }; done
mariadb --no-defaults -S /tmp/socket -u root -BN <<'SQL'
create database box;
use box;
create table numbers (n int primary key) engine=innodb;
insert into numbers select seq from seq_1_to_1000;
select count(*), sum(n) from numbers;
shutdown;
SQL
wait
