# The first process of a node, in namespaces of its own for mounts, processes and network. It replaces the paths that
# containerd and kubelet write to, so that everything they leave is below the folder of the control plane. It ends as the
# guard that runs the components. The kernel removes the namespaces, with all mounts, interfaces and iptables rules, when
# their last process ends, and it kills all processes when the first one ends.
#
# Arguments: the folder of the control plane, and this executable.
set -eu
export PATH="$PATH:/usr/sbin:/sbin"
folder=$1
cd "$folder"
mkdir -p containerd kubelet var-lib/upper var-lib/work log tunables

# Pods may use mount propagation. Nothing propagates to this machine: unshare has made all mounts private.
mount --make-rshared /
mount -t tmpfs -o mode=755 run /run
touch /run/operetta
mount --bind "$2" /run/operetta
mount -t proc proc /proc
mount --bind log /var/log
mount -t overlay -o "lowerdir=/var/lib,upperdir=$folder/var-lib/upper,workdir=$folder/var-lib/work" overlay /var/lib
mkdir -p /var/lib/kubelet
mount --bind kubelet /var/lib/kubelet

# kubelet wants to set these for the whole machine. A file with its value is mounted over each, so that the machine keeps its own.
tunable() {
  if [ -e "/proc/sys/$1" ]; then
    echo "$2" >"tunables/${1##*/}"
    mount --bind "tunables/${1##*/}" "/proc/sys/$1"
  fi
}
tunable vm/overcommit_memory 1
tunable vm/panic_on_oom 0
tunable kernel/panic 10
tunable kernel/panic_on_oops 1
tunable kernel/keys/root_maxkeys 1000000
tunable kernel/keys/root_maxbytes 25000000

# This setting belongs to the network namespace of the node, not to the machine.
echo 1 >/proc/sys/net/ipv4/ip_forward

exec /run/operetta __guard serve "$folder"
