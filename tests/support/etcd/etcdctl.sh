# An etcdctl without etcd: `sh etcdctl.sh NAMESPACE/NAME ARGUMENTS...` keeps the list of members of a cluster in files
# beside itself. A member has started once it has had a ready pod, and answers while it has one.
# CLUSTER.pods: a line for each ready pod, with ordinal and version. CLUSTER.founders: the initial number of members.
# CLUSTER.members: ordinal, number, URL, whether it is a learner, whether it has started.
# Tests run it thousands of times, so it starts no processes except flock and mv.
cd "${0%/*}" || exit 9
space=${1%%/*} name=${1#*/}
of=$space.$name
shift
echo "$*" >> "$of.calls"
exec 9> "$of.lock"
flock -w 20 9 || exit 1 # the lock is released even if this script is killed
[ -f "$of.pods" ] && [ -f "$of.founders" ] || { echo "no cluster $of" >&2; exit 1; }

end='
'
url() { url=http://$name-$1.$name.$space.svc; }
is_ready() { case $ready in *" $1="*) ;; *) return 1 ;; esac; }
fail() { echo "Error: $*" >&2; exit 1; }
save() { printf '%s' "$members" > "$of.new" && mv "$of.new" "$of.members"; }
# The last digits of an id in decimal. Ids have 64 bits: 8e9e05c52164 followed by the number in hexadecimal.
decimal() { digits=$((3932948480 + $1)); }
has_quorum() { [ $((answering * 2)) -gt "$voting" ] || fail "etcdserver: request timed out"; }
# The ordinal of the member with an id.
find_member() {
  found='' wanted=-1
  case $1 in 8e9e05c52164????) wanted=$((0x${1#8e9e05c52164})) ;; esac
  while read -r i number rest; do
    [ "$number" = "$wanted" ] && found=$i
  done < "$of.members"
  [ -n "$found" ] || fail "etcdserver: member not found"
}

ready=' '
while read -r i version; do ready="$ready$i=$version "; done < "$of.pods"

if [ ! -f "$of.members" ]; then
  members='' i=0
  read -r founders < "$of.founders"
  while [ "$i" -lt "$founders" ]; do
    url "$i"
    members="$members$i $i $url:2380 false false$end" i=$((i + 1))
  done
  save
  echo "$founders" > "$of.next"
fi
members='' changed='' voting=0 answering=0 first='' leader='' leads='' leader_number=0
[ -f "$of.leader" ] && read -r leader < "$of.leader"
while read -r i number peer learner started; do
  if is_ready "$i"; then
    [ "$started" = true ] || changed=1
    started=true
  fi
  if [ "$learner" = false ]; then
    voting=$((voting + 1))
    if is_ready "$i"; then
      answering=$((answering + 1))
      [ -n "$first" ] || first=$number
      [ "$i" = "$leader" ] && leads=$number
    fi
  fi
  members="$members$i $number $peer $learner $started$end"
done < "$of.members"
[ -n "$changed" ] && save
leader_number=${leads:-${first:-0}}

case "$1 $2" in
  "member list") # before 3.5 each member answers by itself, so a second voter that has not started is shown
    separator=''
    printf '{"header":{"cluster_id":14841639068965178418},"members":['
    while read -r i number peer learner started; do
      decimal "$number"
      printf '%s{"ID":1027665774%s,"peerURLs":["%s"]' "$separator" "$digits" "$peer"
      url "$i"
      [ "$started" = true ] && printf ',"name":"%s","clientURLs":["%s:2379"]' "$name-$i" "$url"
      [ "$learner" = true ] && printf ',"isLearner":true'
      printf '}'
      separator=,
    done < "$of.members"
    echo ']}'
    ;;
  "member add")
    has_quorum
    i=${3##*-} peer=${4#--peer-urls=}
    case "$end$members" in *"$end$i "*) fail "etcdserver: Peer URLs already exists" ;; esac
    learner=false
    [ "$5" = --learner ] && learner=true
    read -r next < "$of.next"
    members="$members$i $next $peer $learner false$end"
    save
    decimal "$next"
    printf '{"member":{"ID":1027665774%s,"peerURLs":["%s"]}}\n' "$digits" "$peer"
    echo $((next + 1)) > "$of.next"
    ;;
  "member remove" | "member promote")
    has_quorum
    find_member "$3"
    [ "$2" = remove ] || is_ready "$found" ||
      fail "etcdserver: can only promote a learner member which is in sync with leader"
    members=''
    while read -r i number peer learner started; do
      if [ "$i" = "$found" ]; then
        [ "$2" = remove ] && continue
        learner=false
      fi
      members="$members$i $number $peer $learner $started$end"
    done < "$of.members"
    save
    ;;
  "move-leader "*)
    find_member "$2"
    echo "$found" > "$of.leader"
    ;;
  "endpoint status")
    separator='' silent=0
    printf '['
    decimal "$leader_number"
    leader_digits=$digits
    while read -r i number peer learner started; do
      [ "$started" = true ] || continue
      is_ready "$i" || { silent=1; continue; }
      version=${ready##*" $i="}
      url "$i"
      decimal "$number"
      printf '%s{"Endpoint":"%s:2379","Status":{"header":{"member_id":1027665774%s},"version":"%s","leader":1027665774%s}}' \
        "$separator" "$url" "$digits" "${version%% *}" "$leader_digits"
      separator=,
    done < "$of.members"
    echo ']'
    exit $silent
    ;;
  defrag*) ;;
  *) fail "unknown command $*" ;;
esac
exit 0
