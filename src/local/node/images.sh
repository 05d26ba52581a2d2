# Makes the layers of the node's images, as NAME.tar in this folder: Debian packages, and binaries built with Go. Equal
# inputs give equal layers. Environment: ETCD_3_5 and ETCD_3_6 are folders of binaries, RCLONE is a binary.
set -eu

# As root: apt's own user may not write here.
apt-get -qq -o APT::Sandbox::User=root download busybox-static etcd-server etcd-client nginx nginx-common \
  libc6 libcrypt1 libpcre2-8-0 libssl3 zlib1g
# The tags of the images.
for expected in etcd-server=3.4.23 nginx=1.22.1 busybox-static=1:1.35.0; do
  package=${expected%%=*}
  version=$(dpkg-deb -f "$package"_*.deb Version)
  case $version in
  "${expected#*=}"-*) ;;
  *)
    echo "$package has the version $version instead of ${expected#*=}" >&2
    exit 1
    ;;
  esac
done
mkdir debian
for deb in *.deb; do
  dpkg-deb -x "$deb" "debian/${deb%%_*}"
done

layer() {
  chmod -R u=rwX,go=rX "$1"
  [ ! -d "$1/tmp" ] || chmod 1777 "$1/tmp"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf "$1.tar" .
}

mkdir -p busybox/bin busybox/usr/bin busybox/etc busybox/root busybox/tmp
cp debian/busybox-static/bin/busybox busybox/bin/
for applet in $(busybox/bin/busybox --list); do
  [ "$applet" = busybox ] || ln -s busybox "busybox/bin/$applet"
done
ln -s ../../bin/env busybox/usr/bin/env
printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/false >busybox/etc/passwd
printf '%s\n' root:x:0: nogroup:x:65534: >busybox/etc/group
layer busybox

mkdir -p libc
cp -a debian/libc6/lib debian/libc6/lib64 libc/
layer libc

mkdir -p etcd-3.4/usr/local/bin etcd-3.5/usr/local/bin etcd-3.6/usr/local/bin
cp debian/etcd-server/usr/bin/etcd debian/etcd-client/usr/bin/etcdctl etcd-3.4/usr/local/bin/
cp "$ETCD_3_5/etcd" "$ETCD_3_5/etcdctl" "$ETCD_3_5/etcdutl" etcd-3.5/usr/local/bin/
cp "$ETCD_3_6/etcd" "$ETCD_3_6/etcdctl" "$ETCD_3_6/etcdutl" etcd-3.6/usr/local/bin/
layer etcd-3.4
layer etcd-3.5
layer etcd-3.6

mkdir -p nginx/etc/nginx/conf.d nginx/usr/share/nginx/html nginx/var/log/nginx nginx/var/lib/nginx nginx/run
for package in libcrypt1 libpcre2-8-0 libssl3 zlib1g; do
  for folder in lib usr/lib; do
    [ ! -d "debian/$package/$folder" ] || (mkdir -p "nginx/$folder" && cp -a "debian/$package/$folder/." "nginx/$folder/")
  done
done
mkdir -p nginx/usr/sbin
cp debian/nginx/usr/sbin/nginx nginx/usr/sbin/
cp debian/nginx-common/etc/nginx/mime.types nginx/etc/nginx/
cat >nginx/etc/nginx/nginx.conf <<'CONF'
user nobody nogroup;
worker_processes 1;
error_log /dev/stderr notice;
pid /run/nginx.pid;
events {}
http {
  include mime.types;
  access_log /dev/stdout;
  include conf.d/*.conf;
}
CONF
cat >nginx/etc/nginx/conf.d/default.conf <<'CONF'
server {
  listen 80;
  location / {
    root /usr/share/nginx/html;
    index index.html;
  }
}
CONF
echo '<h1>Welcome to nginx!</h1>' >nginx/usr/share/nginx/html/index.html
layer nginx

mkdir -p rclone/usr/local/bin rclone/config/rclone
cp "$RCLONE" rclone/usr/local/bin/
layer rclone
