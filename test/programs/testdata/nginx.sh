# shellcheck shell=sh
mkdir -p www logs
head -c 300000 /dev/zero >www/large
echo hello >www/index.html
cat >nginx.conf <<'CONFIG'
worker_processes 2;
pid logs/pid;
error_log logs/error;
events { }
http {
	access_log off;
	client_body_temp_path logs/body; proxy_temp_path logs/proxy; fastcgi_temp_path logs/fastcgi;
	uwsgi_temp_path logs/uwsgi; scgi_temp_path logs/scgi;
	server { listen 127.0.0.1:8080; root www; sendfile on; tcp_nopush on; location /large { aio threads; directio 64k; } }
	server { listen 127.0.0.1:8081 so_keepalive=on rcvbuf=64k sndbuf=64k; location / { proxy_pass http://127.0.0.1:8080; } }
}
CONFIG
nginx -p "$PWD" -c nginx.conf
python3 -c '
from urllib.request import urlopen
with urlopen("http://127.0.0.1:8081/") as page, urlopen("http://127.0.0.1:8081/large") as large:
    print(page.status, page.read().decode().strip(), len(large.read()))'
nginx -p "$PWD" -c nginx.conf -s quit
