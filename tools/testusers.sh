#!/bin/sh
# Runs the tests of the root module as root and as the users 1000, 1001 and 1002, beside a program of
# each that has connections open: tools/testusers.sh [PACKAGE...] [-test.FLAG...]. It needs root. USERS has
# other user IDs.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
USERS=${USERS:-0 1000 1001 1002}
test "$(id -u)" = 0 || { echo "$0: only root can run programs as other users" >&2; exit 2; }
packages=
while test $# -gt 0 && test "${1#-}" = "$1"; do
	packages="$packages $1"
	shift
done
packages=$($GO list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ${packages:-./...})

# What follows is a copy, which every user can read. A user has no more than a home.
dir=$(mktemp -d)
beside=
finish() {
	exec 9>&-
	test -z "$beside" || wait $beside || true
	rm -rf "$dir"
}
trap finish EXIT
umask 022
chmod 755 "$dir"
mkdir "$dir/source"
git ls-files -coz --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -xf - --no-same-owner -C "$dir/source"
chmod -R a+rX "$dir/source"
$GO build -o "$dir/beside" ./tools/beside
for package in $packages; do
	$GO test -c -o "$dir/source/${package#"$PWD"}/users.test" "$package"
done
as() {
	uid=$1
	shift
	setpriv --reuid "$uid" --regid "$uid" --clear-groups env -u CI HOME="$dir/$uid" TMPDIR="$dir/$uid/tmp" "$@"
}

mkfifo "$dir/end"
exec 9<>"$dir/end" # the programs' standard input, which ends with this script
for uid in $USERS; do
	mkdir -m 700 "$dir/$uid" "$dir/$uid/tmp"
	chown -R "$uid:$uid" "$dir/$uid"
	mkfifo "$dir/ready"
	(exec 9>&- && as "$uid" "$dir/beside" <"$dir/end" >"$dir/ready") & # the end of 9 is theirs
	beside="$beside $!"
	read -r _ <"$dir/ready" || { echo "$0: user $uid has no connections" >&2; exit 1; }
	rm "$dir/ready"
done

status=0
for uid in $USERS; do
	for package in $packages; do
		echo "user $uid: .${package#"$PWD"}"
		(cd "$dir/source/${package#"$PWD"}" && as "$uid" ./users.test -test.timeout 30m "$@" 9>&-) || status=1
	done
done
exit $status
