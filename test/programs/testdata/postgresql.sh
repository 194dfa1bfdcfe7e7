# shellcheck shell=sh
initdb -D data -A trust --no-sync -U box >&2
pg_ctl -D data -w -l log -o '-k /tmp -c listen_addresses=127.0.0.1 -c fsync=off' start >&2 || { cat log >&2; exit 1; }
psql -q -At -h 127.0.0.1 -U box postgres <<'SQL'
create table numbers (n int primary key);
insert into numbers select generate_series(1, 1000);
select count(*) || ' rows, ' || sum(n) from numbers;
SQL
pg_ctl -D data -w stop >&2
