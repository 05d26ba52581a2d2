# An etcdctl without etcd: `sh etcdctl.sh NAMESPACE/NAME ARGUMENTS...` keeps the list of members of a cluster in files
# beside itself. A member has started once it has had a ready pod, and answers while it has one.
# CLUSTER.pods: a line for each ready pod, with ordinal and version. CLUSTER.founders: with how many members it began.
# CLUSTER.members: ordinal, number, URL, whether it is a learner, whether it has started.
cd "$(dirname "$0")" || exit 9
of=$(echo "$1" | tr / .) name=${1#*/} space=${1%%/*}
shift
echo "$*" >> "$of.calls"
exec 9> "$of.lock"
flock -w 20 9 || exit 1 # released also when it is killed
[ -f "$of.pods" ] && [ -f "$of.founders" ] || { echo "no cluster $of" >&2; exit 1; }
[ -f "$of.fail" ] && { cat "$of.fail" >&2; exit 1; }

# 64 bits, more than a double holds.
hexadecimal() { printf '8e9e05c52164%04x' "$1"; }
decimal() { printf '%u' "0x$(hexadecimal "$1")"; }
host() { echo "$name-$1.$name.$space.svc"; }
is_ready() { grep -q "^$1 " "$of.pods"; }
fail() { echo "Error: $*" >&2; exit 1; }
save() { cat > "$of.new" && mv "$of.new" "$of.members"; }

if [ ! -f "$of.members" ]; then
  for i in $(seq 0 $(($(cat "$of.founders") - 1))); do echo "$i $i http://$(host "$i"):2380 false false"; done | save
  cat "$of.founders" > "$of.next"
fi
while read -r i number url learner started; do
  is_ready "$i" && started=true
  echo "$i $number $url $learner $started"
done < "$of.members" | save
voting=$(grep -c ' false [a-z]*$' "$of.members")
answering=$(while read -r i number url learner started; do
  [ "$learner" = false ] && is_ready "$i" && echo "$i"
done < "$of.members")
has_quorum() { [ $(($(echo "$answering" | grep -c .) * 2)) -gt "$voting" ] || fail "etcdserver: request timed out"; }
leader=$(cat "$of.leader" 2> /dev/null)
echo "$answering" | grep -qx "$leader" || leader=$(echo "$answering" | head -n 1)
of_id() { while read -r i number url learner started; do [ "$(hexadecimal "$number")" = "$1" ] && echo "$i"; done < "$of.members"; }

case "$1 $2" in
  "member list") # before 3.5 each member answers by itself, so a second voter that has not started is shown
    separator=''
    printf '{"header":{"cluster_id":14841639068965178418},"members":['
    while read -r i number url learner started; do
      printf '%s{"ID":%s,"peerURLs":["%s"]' "$separator" "$(decimal "$number")" "$url"
      [ "$started" = true ] && printf ',"name":"%s","clientURLs":["http://%s:2379"]' "$name-$i" "$(host "$i")"
      [ "$learner" = true ] && printf ',"isLearner":true'
      printf '}'
      separator=,
    done < "$of.members"
    echo ']}'
    ;;
  "member add")
    has_quorum
    grep -q "^${3##*-} " "$of.members" && fail "etcdserver: Peer URLs already exists"
    learner=false
    [ "$5" = --learner ] && learner=true
    { cat "$of.members"; echo "${3##*-} $(cat "$of.next") ${4#--peer-urls=} $learner false"; } | save
    printf '{"member":{"ID":%s,"peerURLs":["%s"]}}\n' "$(decimal "$(cat "$of.next")")" "${4#--peer-urls=}"
    echo $(($(cat "$of.next") + 1)) > "$of.next"
    ;;
  "member remove")
    has_quorum
    i=$(of_id "$3")
    [ -n "$i" ] || fail "etcdserver: member not found"
    grep -v "^$i " "$of.members" | save
    ;;
  "member promote")
    has_quorum
    i=$(of_id "$3")
    [ -n "$i" ] || fail "etcdserver: member not found"
    is_ready "$i" || fail "etcdserver: can only promote a learner member which is in sync with leader"
    sed "s/^\($i .*\) true \([a-z]*\)$/\1 false \2/" "$of.members" | save
    ;;
  "move-leader "*)
    of_id "$2" > "$of.leader"
    ;;
  "endpoint status")
    separator='' silent=0
    printf '['
    while read -r i number url learner started; do
      [ "$started" = true ] || continue
      is_ready "$i" || { silent=1; continue; }
      version=$(sed -n "s/^$i //p" "$of.pods")
      printf '%s{"Endpoint":"http://%s:2379","Status":{"header":{"member_id":%s},"version":"%s","leader":%s}}' \
        "$separator" "$(host "$i")" "$(decimal "$number")" "$version" \
        "$(decimal "$(sed -n "s/^$leader \([0-9]*\) .*/\1/p" "$of.members")")"
      separator=,
    done < "$of.members"
    echo ']'
    exit $silent
    ;;
  defrag*) ;;
  *) fail "unknown command $*" ;;
esac
exit 0
